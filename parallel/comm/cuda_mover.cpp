// Moves and sums on a GPU, between its own memory and that of its peers.
#include <cuda_runtime.h>

#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_call.h"
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/parallel/comm/mover.h"

namespace zero3d::detail {
namespace {

int device_of(const void* data) {
  cudaPointerAttributes attributes{};
  ZERO3D_CUDA(cudaPointerGetAttributes(&attributes, data));
  return attributes.device;
}

class CudaMover final : public Mover {
 public:
  explicit CudaMover(CudaStreamHandle stream) : stream_(stream) {}

  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    if (bytes == 0 || to == from) return;
    ZERO3D_CUDA(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_));
  }

  void sum(const kernels::ReduceSumArgs& args) override {
    if (args.count == 0) return;
    for (const void* input : args.inputs) reach(input);
    kernels::cuda::reduce_sum(args, stream_);
  }

  void settle() override { ZERO3D_CUDA(cudaStreamSynchronize(stream_)); }
  void wait(const Event& event) override { wait_on_cuda(stream_, event); }

 private:
  /// Lets the current device read memory of another one.
  static void reach(const void* data) {
    int own = 0, reachable = 0;
    ZERO3D_CUDA(cudaGetDevice(&own));
    const int other = device_of(data);
    if (other == own) return;
    ZERO3D_CUDA(cudaDeviceCanAccessPeer(&reachable, own, other));
    if (reachable == 0)
      throw_invalid(concat("GPU ", own, " cannot read memory of GPU ", other,
                           ": ranks that are threads sum through such reads; give each rank a "
                           "process of its own (mpirun), or let them share a GPU"));
    const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      ZERO3D_CUDA(code);
    }
  }

  CudaStreamHandle stream_;
};

}  // namespace

std::unique_ptr<Mover> make_cuda_mover(CudaStreamHandle stream) {
  return std::make_unique<CudaMover>(stream);
}

}  // namespace zero3d::detail
