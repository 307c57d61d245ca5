#include "zero3d/device/cuda/cuda_memory.h"

#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_call.h"

namespace zero3d {
namespace {

/// Null where there is not so much memory; what else goes wrong is an error.
void* unless_out_of_memory(cudaError_t code, void* data, const char* call) {
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it has been heard of
    return nullptr;
  }
  if (code != cudaSuccess) throw CudaError(code, call, __FILE__, __LINE__);
  return data;
}

class DeviceRanges final : public RangeSource {
 public:
  explicit DeviceRanges(int device) : device_(device) {}

  void* map(std::size_t bytes) override {
    use_cuda_device(device_);
    void* data = nullptr;
    const cudaError_t code = cudaMalloc(&data, bytes);
    return unless_out_of_memory(code, data, "cudaMalloc");
  }
  void unmap(void* data, std::size_t) noexcept override {
    log_cuda_failure(cudaSetDevice(device_), "cudaSetDevice");
    log_cuda_failure(cudaFree(data), "cudaFree");
  }
  std::string place() const override { return concat("memory of GPU ", device_); }
  std::string advice() const override {
    std::size_t free = 0, total = 0;
    if (cudaSetDevice(device_) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess)
      return "the GPU does not say how much is free";
    return concat(
        format_bytes(static_cast<std::int64_t>(free)), " of its ",
        format_bytes(static_cast<std::int64_t>(total)),
        " are free; end what else runs there, or need less: a higher ZeRO stage, offload, "
        "activation checkpointing or a smaller micro-batch");
  }

 private:
  const int device_;
};

class PinnedRanges final : public RangeSource {
 public:
  explicit PinnedRanges(int device) : device_(device) {}

  void* map(std::size_t bytes) override {
    use_cuda_device(device_);
    void* data = nullptr;
    const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
    return unless_out_of_memory(code, data, "cudaHostAlloc");
  }
  void unmap(void* data, std::size_t) noexcept override {
    log_cuda_failure(cudaFreeHost(data), "cudaFreeHost");
  }
  std::string place() const override { return "page-locked host memory"; }
  std::string advice() const override {
    return "the machine or the container has no more of it; need less: a smaller micro-batch, or "
           "states on drives";
  }

 private:
  const int device_;
};

}  // namespace

std::unique_ptr<RangeSource> cuda_device_ranges(int device) {
  return std::make_unique<DeviceRanges>(device);
}
std::unique_ptr<RangeSource> cuda_pinned_ranges(int device) {
  return std::make_unique<PinnedRanges>(device);
}

}  // namespace zero3d
