#include "zero3d/tests/device/cuda/fill.h"

#include "zero3d/device/cuda/cuda_stream.h"

namespace zero3d::test {
namespace {

__global__ void fill_kernel(std::int32_t* data, std::int64_t count, std::int32_t value) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value;
}

__global__ void trap_kernel() { __trap(); }

}  // namespace

void fill(Stream& stream, const View& view, std::int32_t value) {
  enqueue_cuda(stream, "fill", {writes(view)},
               [data = view.as<std::int32_t>(), count = view.numel(), value](cudaStream_t queue) {
                 if (count == 0) return;
                 const auto blocks = static_cast<unsigned>((count + 255) / 256);
                 fill_kernel<<<blocks, 256, 0, queue>>>(data, count, value);
               });
}

void trap(Stream& stream) {
  enqueue_cuda(stream, "trap", std::initializer_list<Access>{},
               [](cudaStream_t queue) { trap_kernel<<<1, 1, 0, queue>>>(); });
}

}  // namespace zero3d::test
