// Rotary position embedding on the GPU: a block takes a row of x, computes its angles once and
// turns every head by them.
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/launch.cuh"

namespace zero3d::kernels::cuda {
namespace {

constexpr int kMostPairs = 256;  // frequencies that fit one launch's parameters

struct Frequencies {
  float v[kMostPairs];
};

/// Pairs [first, first + pairs) of each head.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    rope_kernel(T* x, std::int64_t stride, std::int64_t rows, std::int64_t seq,
                std::int64_t first_position, std::int64_t heads, std::int64_t head_dim, int first,
                int pairs, float scaling, bool inverse,
                __grid_constant__ const Frequencies frequencies) {
  __shared__ float cosines[kMostPairs], sines[kMostPairs];
  const std::int64_t half = head_dim / 2;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto position = static_cast<float>(first_position + row % seq);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
      const float angle = __fmul_rn(position, frequencies.v[i]);
      cosines[i] = round_to<T>(__fmul_rn(cosf(angle), scaling));
      sines[i] = round_to<T>(__fmul_rn(sinf(angle), inverse ? -scaling : scaling));
    }
    __syncthreads();
    for (std::int64_t at = threadIdx.x; at < heads * pairs; at += kThreads) {
      const auto i = static_cast<int>(at % pairs);
      T* low_at = x + row * stride + at / pairs * head_dim + first + i;
      T* high_at = low_at + half;
      const float low = widen(*low_at), high = widen(*high_at);
      *low_at = narrow_to<T>(__fsub_rn(round_to<T>(__fmul_rn(low, cosines[i])),
                                       round_to<T>(__fmul_rn(high, sines[i]))));
      *high_at = narrow_to<T>(__fadd_rn(round_to<T>(__fmul_rn(high, cosines[i])),
                                        round_to<T>(__fmul_rn(low, sines[i]))));
    }
  }
}

}  // namespace

void rope(const RopeArgs& a, NativeStream stream) {
  const std::int64_t rows = a.batch * a.seq;
  if (rows == 0 || a.heads == 0) return;
  const std::int64_t half = a.head_dim / 2;
  for (std::int64_t first = 0; first < half; first += kMostPairs) {
    const std::int64_t pairs = std::min<std::int64_t>(kMostPairs, half - first);
    Frequencies frequencies{};
    std::copy_n(a.inverse_frequencies.begin() + first, pairs, frequencies.v);
    with_type(a.dtype, [&](auto tag) {
      rope_kernel<<<static_cast<unsigned>(std::min<std::int64_t>(rows, 65535)), kThreads, 0,
                    stream>>>(static_cast<decltype(tag)*>(a.x.data), a.x.stride, rows, a.seq,
                              a.first_position, a.heads, a.head_dim, static_cast<int>(first),
                              static_cast<int>(pairs), a.attention_scaling, a.inverse, frequencies);
    });
  }
  check_launch("rope");
}

}  // namespace zero3d::kernels::cuda
