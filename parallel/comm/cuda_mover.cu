// Moves and sums on a GPU, between its own memory and that of its peers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_call.h"
#include "zero3d/parallel/comm/mover.h"

namespace zero3d::detail {
namespace {

constexpr int kMostRanks = 256;
constexpr int kThreads = 256;

struct Inputs {
  const void* of[kMostRanks];
  int count;
};

__device__ float widen(float x) { return x; }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float widen(__half x) { return __half2float(x); }

template <typename T>
__device__ T narrow_to(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return x;
  }
}

__device__ float round_to(DType dtype, float x) {
  if (dtype == DType::bf16) return widen(__float2bfloat16_rn(x));
  if (dtype == DType::f16) return widen(__float2half_rn(x));
  return x;
}

/// In rank order and in fp32, as the CPU's.
template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ Inputs inputs, Out* out, std::int64_t count, float scale_in,
               float scale_out, DType wire) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    const auto input = [&](int rank) {
      const float value = widen(static_cast<const In*>(inputs.of[rank])[i]);
      return round_to(wire, __fmul_rn(value, scale_in));
    };
    float total = input(0);
    for (int rank = 1; rank < inputs.count; ++rank) total = __fadd_rn(total, input(rank));
    out[i] = narrow_to<Out>(round_to(wire, __fmul_rn(total, scale_out)));
  }
}

/// Calls `body` with a value of the C++ type of a float dtype.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::f32) return body(float{});
  if (dtype == DType::bf16) return body(__nv_bfloat16{});
  if (dtype == DType::f16) return body(__half{});
  throw_invalid(concat("a sum of ", name_of(dtype), "; expected fp32, bf16 or fp16"));
}

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
    if (args.inputs.size() > kMostRanks)
      throw_invalid(concat("a sum over ", args.inputs.size(), " ranks on a GPU; expected at most ",
                           kMostRanks));
    Inputs inputs{};
    inputs.count = static_cast<int>(args.inputs.size());
    for (std::size_t r = 0; r < args.inputs.size(); ++r) {
      reach(args.inputs[r]);
      inputs.of[r] = args.inputs[r];
    }
    with_type(args.in_dtype, [&](auto in) {
      with_type(args.out_dtype, [&](auto out) {
        using Out = decltype(out);
        const std::int64_t blocks = (args.count + kThreads - 1) / kThreads;
        sum_kernel<decltype(in), Out>
            <<<static_cast<unsigned>(std::min<std::int64_t>(blocks, 2048)), kThreads, 0, stream_>>>(
                inputs, static_cast<Out*>(args.out), args.count, args.scale_in, args.scale_out,
                args.wire.value_or(DType::f32));
      });
    });
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
