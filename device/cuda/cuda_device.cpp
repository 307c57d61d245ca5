// The GPU as a device: its memory, its streams and its copies.
#include "zero3d/device/cuda/cuda_device.h"

#include <atomic>
#include <cstring>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cpu/cpu_stream.h"
#include "zero3d/device/cuda/cuda_memory.h"
#include "zero3d/device/cuda/cuda_queue.h"
#include "zero3d/device/cuda/cuda_stream.h"
#include "zero3d/device/parallel.h"

namespace zero3d {
namespace {

constexpr std::int64_t kCopyGrain = std::int64_t{1} << 20;
/// Unlike address space these are bytes from the start: small pieces first.
constexpr std::size_t kFirstPiece = std::size_t{8} << 20;
constexpr std::size_t kFirstPinnedPiece = std::size_t{2} << 20;

std::string memory_name(Tier tier, int rank) { return concat(name_of(tier), " of rank ", rank); }

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaDeviceOptions& options);

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override {
    return concat("GPU ", options_.device, " of rank ", options_.rank);
  }
  std::unique_ptr<Stream> create_stream(const std::string& name) override;
  std::unique_ptr<Stream> create_host_stream(const std::string& name) override;
  using Device::memory;
  TrackingResource& memory(Tier tier) override;
  void copy(Stream& stream, const View& dst, const ConstView& src) override;
  CopiedBytes copied() const override { return {to_device_.load(), to_host_.load()}; }
  void fill_zero(Stream& stream, const View& dst) override;
  ConstView host_read(const ConstView& view) override;
  View host_write(const View& view) override;
  void declare(const std::string& what, std::span<const Access> accesses,
               std::span<const Event> after, Event& done) override {
    declare_work(checker_.get(), what, accesses, after, done);
  }

 private:
  CpuStreamOptions stream_options();
  void host_access(const char* what, const Access& access);

  const CudaDeviceOptions options_;
  const std::shared_ptr<CudaEventPool> events_;
  std::unique_ptr<HazardChecker> checker_;
  ArenaResource arena_;
  const HostBounds bounds_;
  ArenaResource pinned_arena_;
  ArenaResource host_arena_;
  TrackingResource memory_;
  const std::shared_ptr<MemoryBudget> host_budget_;
  TrackingResource pinned_;
  TrackingResource pageable_;
  std::uint64_t streams_ = 0;
  std::atomic<std::int64_t> to_device_{0};
  std::atomic<std::int64_t> to_host_{0};
};

CudaDevice::CudaDevice(const CudaDeviceOptions& options)
    : options_(options),
      events_(std::make_shared<CudaEventPool>(options.device)),
      checker_(options.check_hazards ? std::make_unique<HazardChecker>(description()) : nullptr),
      arena_(kFirstPiece, cuda_device_ranges(options.device)),
      bounds_(arena_),
      pinned_arena_(kFirstPinnedPiece, cuda_pinned_ranges(options.device)),
      memory_(arena_, memory_name(Tier::device, options.rank),
              make_memory_budget(options.budget_bytes,
                                 "raise the budget with --device-memory, or need less: a higher "
                                 "ZeRO stage, offload, activation checkpointing or a smaller "
                                 "micro-batch")),
      host_budget_(make_memory_budget(
          options.host_budget_bytes,
          "raise the budget with --host-memory, or need less: a smaller micro-batch")),
      pinned_(pinned_arena_, memory_name(Tier::pinned, options.rank), host_budget_),
      pageable_(host_arena_, memory_name(Tier::pageable, options.rank), host_budget_) {
  if (options.threads < 1)
    throw_invalid(concat("a CUDA device with ", options.threads,
                         " threads for its host streams; expected 1 or more"));
}

TrackingResource& CudaDevice::memory(Tier tier) {
  switch (tier) {
    case Tier::pinned:
      return pinned_;
    case Tier::pageable:
      return pageable_;
    case Tier::device:
      break;
  }
  return memory_;
}

CpuStreamOptions CudaDevice::stream_options() {
  CpuStreamOptions options{options_.rank, options_.threads, 0, checker_.get(), &bounds_};
  if (options_.jitter_seed != 0) options.jitter_seed = options_.jitter_seed + ++streams_ * 7919;
  return options;
}

std::unique_ptr<Stream> CudaDevice::create_stream(const std::string& name) {
  CpuStreamOptions options = stream_options();
  options.kind = DeviceKind::cuda;
  options.native = std::make_shared<CudaQueue>(events_);
  return std::make_unique<QueuedStream>(*this, name, options);
}

std::unique_ptr<Stream> CudaDevice::create_host_stream(const std::string& name) {
  return std::make_unique<QueuedStream>(*this, name, stream_options());
}

void CudaDevice::copy(Stream& stream, const View& dst, const ConstView& src) {
  const std::size_t bytes = dst.bytes();
  if (bytes != src.bytes())
    throw_invalid(concat("copy of ", src.bytes(), " bytes into ", bytes, "; expected equal sizes"));
  if (bytes == 0) return;
  std::byte* to = dst.data();
  const std::byte* from = src.data();
  if (to < from + bytes && from < to + bytes)
    throw_invalid(concat("copy of ", bytes, " bytes between overlapping ranges"));
  const bool into_device = arena_.contains(to);
  const bool out_of_device = arena_.contains(from);
  const Access accesses[] = {writes(dst), reads(src)};
  if (stream.kind() != DeviceKind::cuda || (!into_device && !out_of_device)) {
    stream.launch("copy", accesses, [to, from, bytes] {
      parallel_for(static_cast<std::int64_t>(bytes), kCopyGrain,
                   [to, from](std::int64_t begin, std::int64_t end) {
                     std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
                   });
    });
    return;
  }
  if (into_device != out_of_device)
    (into_device ? to_device_ : to_host_) += static_cast<std::int64_t>(bytes);
  const bool pageable = (!into_device && !pinned_arena_.contains(to)) ||
                        (!out_of_device && !pinned_arena_.contains(from));
  enqueue_cuda(stream, "copy", accesses, [to, from, bytes, pageable](cudaStream_t queue) {
    // CUDA reads pageable memory at the call, whatever else the stream has yet to do.
    if (pageable) ZERO3D_CUDA(cudaStreamSynchronize(queue));
    ZERO3D_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue));
    if (pageable) ZERO3D_CUDA(cudaStreamSynchronize(queue));
  });
}

void CudaDevice::fill_zero(Stream& stream, const View& dst) {
  const std::size_t bytes = dst.bytes();
  if (bytes == 0) return;
  std::byte* to = dst.data();
  const Access accesses[] = {writes(dst)};
  if (stream.kind() == DeviceKind::cuda && arena_.contains(to)) {
    enqueue_cuda(stream, "fill zero", accesses, [to, bytes](cudaStream_t queue) {
      ZERO3D_CUDA(cudaMemsetAsync(to, 0, bytes, queue));
    });
  } else {
    stream.launch("fill zero", accesses, [to, bytes] { std::memset(to, 0, bytes); });
  }
}

ConstView CudaDevice::host_read(const ConstView& view) {
  host_access("host_read", reads(view));
  return view;
}

View CudaDevice::host_write(const View& view) {
  host_access("host_write", writes(view));
  return view;
}

void CudaDevice::host_access(const char* what, const Access& access) {
  bounds_.check(what, description(), {&access, 1});
  if (checker_ != nullptr) checker_->host_access(access);
}

int require_devices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  throw_invalid(
      concat("no GPU: ", code == cudaSuccess ? "there is none" : cudaGetErrorString(code),
             "; look at nvidia-smi and at CUDA_VISIBLE_DEVICES, or train with --device cpu"));
}

}  // namespace

bool built_with_cuda() { return true; }

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::int64_t cuda_free_memory(int device) {
  int before = 0;
  std::size_t free = 0;
  std::size_t total = 0;
  ZERO3D_CUDA(cudaGetDevice(&before));
  ZERO3D_CUDA(cudaSetDevice(device));
  ZERO3D_CUDA(cudaMemGetInfo(&free, &total));
  ZERO3D_CUDA(cudaSetDevice(before));
  return static_cast<std::int64_t>(free);
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  const int count = require_devices();
  if (options.device < 0 || options.device >= count)
    throw_invalid(concat("GPU ", options.device, " for rank ", options.rank, ": there are ", count,
                         ", counted from 0; CUDA_VISIBLE_DEVICES says which"));
  return std::make_unique<CudaDevice>(options);
}

int cuda_device_of(int local_rank) {
  if (local_rank < 0) throw_invalid(concat("local rank ", local_rank, "; expected 0 or more"));
  return local_rank % require_devices();
}

}  // namespace zero3d
