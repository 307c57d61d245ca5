#include "zero3d/parallel/comm/nccl_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_call.h"
#include "zero3d/parallel/comm/launcher.h"

namespace zero3d::detail {
namespace {

constexpr std::chrono::milliseconds kLook{10};
/// To ask a device whether it has passed an event is to wait for it a little: only when it is late.
constexpr std::chrono::milliseconds kPatience{300};

[[noreturn]] void throw_nccl(ncclResult_t result, const char* call, int rank) {
  throw CommError(rank, call, concat("NCCL: ", ncclGetErrorString(result), " in ", call));
}

void check_nccl(ncclResult_t result, const char* call, int rank) {
  if (result != ncclSuccess) throw_nccl(result, call, rank);
}

/// The GPU's name on its machine, whatever number it goes by in a process.
std::string bus_id(int device) {
  char id[32] = "";
  ZERO3D_CUDA(cudaDeviceGetPCIBusId(id, sizeof id, device));
  return id;
}

/// Throws on all ranks alike when two have one GPU.
void require_own_gpus(Communicator& world, int device, const std::string& machine) {
  const std::vector<std::string> all = world.exchange(concat(machine, " ", bus_id(device)));
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b)
      if (all[a] == all[b])
        throw_invalid(concat("ranks ", a, " and ", b, " of ", world.description(),
                             " have one GPU between them (", all[a].substr(all[a].rfind(' ') + 1),
                             "), and NCCL takes one rank a GPU: start as many ranks as there are "
                             "GPUs, or have ranks that are threads share one without NCCL"));
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<Communicator> inner, int device)
    : inner_(std::move(inner)), rank_(inner_->rank()), size_(inner_->size()), device_(device) {
  check_ = std::make_shared<const std::function<void()>>([world = std::weak_ptr(inner_)] {
    if (const auto alive = world.lock()) alive->check();
  });
  use_cuda_device(device_);
  require_own_gpus(*inner_, device, machine_name());
  fail_together(*inner_, [this] { open(); });
  watcher_ = std::thread([this] { watch(); });
}

void NcclGroup::open() {
  ncclUniqueId id{};
  std::string own;
  if (rank_ == 0) {
    check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", rank_);
    own.assign(id.internal, sizeof id.internal);
  }
  const std::string first = inner_->exchange(own).front();
  std::memcpy(id.internal, first.data(), sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::unique_lock lock(mutex_);
  settle(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), "ncclCommInitRank", lock);
}

NcclGroup::~NcclGroup() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_one();
  if (watcher_.joinable()) watcher_.join();
  if (aborted_ || comm_ == nullptr) return;
  cudaSetDevice(device_);
  ncclResult_t result = ncclCommFinalize(comm_);
  while (result == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) result = ncclInternalError;
  }
  if (result == ncclSuccess) {
    ncclCommDestroy(comm_);
  } else {
    ncclCommAbort(comm_);
  }
}

void NcclGroup::require_open() {
  if (!aborted_) return;
  inner_->check();
  throw CommError(rank_, "NCCL", "the NCCL communicator was aborted");
}

void NcclGroup::settle(ncclResult_t result, const char* call, std::unique_lock<std::mutex>& lock) {
  while (result == ncclInProgress) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    inner_->check();
    lock.lock();
    require_open();
    check_nccl(ncclCommGetAsyncError(comm_, &result), call, rank_);
  }
  check_nccl(result, call, rank_);
}

void NcclGroup::issue(const std::function<void(ncclComm_t)>& body) {
  std::unique_lock lock(mutex_);
  require_open();
  check_nccl(ncclGroupStart(), "ncclGroupStart", rank_);
  std::exception_ptr error;
  try {
    body(comm_);
  } catch (...) {
    error = std::current_exception();
  }
  const ncclResult_t result = ncclGroupEnd();
  if (error != nullptr) std::rethrow_exception(error);
  settle(result, "ncclGroupEnd", lock);
}

void NcclGroup::expect(const char* operation, const Event& end) {
  const std::lock_guard lock(mutex_);
  if (expected_.empty()) expected_since_ = std::chrono::steady_clock::now();
  expected_.push_back({operation, end});
}

void NcclGroup::watch() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kLook, [this] { return ending_; })) {
    if (aborted_) continue;
    lock.unlock();
    bool failed = false;
    try {
      inner_->check();
      look_for_errors();
      look_for_late_peers(std::chrono::steady_clock::now());
    } catch (...) {
      inner_->fail(std::current_exception());  // of a world that has failed: nothing new
      failed = true;
    }
    if (failed) abort();
    lock.lock();
  }
}

void NcclGroup::look_for_errors() {
  const std::lock_guard lock(mutex_);
  ncclResult_t result = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError", rank_);
  if (result != ncclSuccess && result != ncclInProgress)
    throw_nccl(result, "an operation that was under way", rank_);
}

void NcclGroup::look_for_late_peers(std::chrono::steady_clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (expected_.empty() || now - expected_since_ < std::min(kPatience, limit())) return;
  const std::size_t before = expected_.size();
  while (!expected_.empty() && expected_.front().end.done()) expected_.pop_front();
  if (expected_.size() != before) expected_since_ = now;
  if (expected_.empty() || now - expected_since_ < limit()) return;
  throw CommError(rank_, expected_.front().operation,
                  concat(expected_.front().operation, " on ", inner_->description(),
                         " has not ended within ", limit().count(),
                         " ms on the GPU: a peer is missing, or the work before it takes longer "
                         "(--comm-timeout)"));
}

void NcclGroup::abort() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(aborted_, true)) return;
  ncclCommAbort(comm_);
  expected_.clear();
}

}  // namespace zero3d::detail
