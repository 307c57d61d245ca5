#include "zero3d/device/cuda/cuda_queue.h"

#include <algorithm>

#include "zero3d/core/text.h"
#include "zero3d/device/cpu/cpu_stream.h"
#include "zero3d/device/cuda/cuda_stream.h"
#include "zero3d/device/device.h"

namespace zero3d {

CudaEventPool::~CudaEventPool() {
  for (cudaEvent_t event : free_) log_cuda_failure(cudaEventDestroy(event), "cudaEventDestroy");
}

cudaEvent_t CudaEventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  ZERO3D_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void CudaEventPool::give_back(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

bool CudaPoint::passed() {
  cudaSetDevice(pool_->device());  // what it finds wrong the query says too
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) return false;
  if (code != cudaSuccess)
    throw CudaError(code, "what a stream of the GPU was given before an event", __FILE__, __LINE__);
  for (const CudaCheck& check : *checks_) (*check)();
  return true;
}

CudaQueue::CudaQueue(std::shared_ptr<CudaEventPool> pool) : pool_(std::move(pool)) {
  use_cuda_device(pool_->device());
  ZERO3D_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaQueue::~CudaQueue() { log_cuda_failure(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }

void CudaQueue::enter() { use_cuda_device(pool_->device()); }

void CudaQueue::settle() {
  ZERO3D_CUDA(cudaStreamSynchronize(stream_));
  for (const CudaCheck& check : *checks_) (*check)();
}

void CudaQueue::add(const CudaChecks& checks) {
  for (const CudaCheck& check : checks) {
    if (std::find(checks_->begin(), checks_->end(), check) != checks_->end()) continue;
    auto more = std::make_shared<CudaChecks>(*checks_);
    more->push_back(check);
    checks_ = std::move(more);
  }
}

bool CudaQueue::wait(NativePoint& point) {
  const auto* cuda = dynamic_cast<const CudaPoint*>(&point);
  if (cuda == nullptr) return false;
  ZERO3D_CUDA(cudaStreamWaitEvent(stream_, cuda->event(), 0));
  add(cuda->checks());
  return true;
}

std::shared_ptr<NativePoint> CudaQueue::record() {
  auto point = std::make_shared<CudaPoint>(pool_, checks_);
  ZERO3D_CUDA(cudaEventRecord(point->event(), stream_));
  return point;
}

namespace {

/// The queue whose worker is in a call of `issue`.
thread_local CudaQueue* issuing = nullptr;

struct CudaStream {
  QueuedStream* stream = nullptr;
  CudaQueue* queue = nullptr;
};

CudaStream require_cuda(Stream& stream, const std::string& what) {
  auto* queued = dynamic_cast<QueuedStream*>(&stream);
  auto* queue = queued == nullptr ? nullptr : dynamic_cast<CudaQueue*>(queued->native());
  if (queue != nullptr) return {queued, queue};
  throw_invalid(concat(what, ": stream '", stream.name(), "' of ", stream.device().description(),
                       " has no CUDA stream behind it; create it with create_stream of a device of "
                       "make_cuda_device"));
}

}  // namespace

void wait_on_cuda(CudaStreamHandle stream, const Event& event) {
  ZERO3D_CHECK(event.recorded(), "a wait for an event never recorded");
  const EventState::HandedOn handed_on = event.state()->handed_on();
  if (const auto* point = dynamic_cast<const CudaPoint*>(handed_on.point.get())) {
    if (handed_on.error != nullptr) std::rethrow_exception(handed_on.error);
    ZERO3D_CUDA(cudaStreamWaitEvent(stream, point->event(), 0));
    issuing->add(point->checks());
    return;
  }
  ZERO3D_CHECK(event.done(), "an event that has neither passed nor been handed to CUDA");
  if (event.state()->error() != nullptr) std::rethrow_exception(event.state()->error());
}

void check_at_points(const CudaCheck& check) {
  ZERO3D_CHECK(issuing != nullptr, "a check outside of enqueue_cuda");
  issuing->add({check});
}

void then_handed_on(Stream& stream, std::function<void(const std::exception_ptr&)> next) {
  require_cuda(stream, "a call").stream->then_handed_on(std::move(next));
}

void enqueue_cuda(Stream& stream, std::string what, std::span<const Access> accesses,
                  std::function<void(CudaStreamHandle)> issue) {
  const auto [queued, queue] = require_cuda(stream, what);
  queued->launch_native(std::move(what), accesses, [queue = queue, issue = std::move(issue)] {
    cudaGetLastError();  // of calls before: what is left behind from here on is of this work
    issuing = queue;
    issue(queue->stream());
    ZERO3D_CUDA(cudaGetLastError());
  });
}

}  // namespace zero3d
