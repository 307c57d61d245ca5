// Attention forward on tensor cores, for bf16 and f16 with head dims of 64, 96, 128 and 256: a
// block of four warps takes 64 queries of one head, a warp 16 of them. Keys and values of the next
// tile arrive while the other of the two is used. Probabilities are rounded to the dtype before
// they weigh the values, as every implementation on such units does; all sums are fp32.
#include <cfloat>

#include "zero3d/kernels/cuda/attention_matrix.cuh"
#include "zero3d/kernels/cuda/attention_matrix.h"
#include "zero3d/kernels/cuda/attention_tiles.cuh"

namespace zero3d::kernels::cuda {
namespace {

constexpr int kQueries = 16 * kWarps;

template <int kDims>
struct Shape {
  static constexpr int kKeys = kDims > 128 ? 32 : 64;
  static constexpr std::size_t kBytes =
      static_cast<std::size_t>(kQueries + 2 * kKeys) * kRowStride<kDims> * sizeof(std::uint16_t);
};

/// A warp's running softmax: of rows lane / 4 and lane / 4 + 8.
template <int kDims>
struct WarpState {
  float max[2] = {-FLT_MAX, -FLT_MAX};
  float sum[2] = {0, 0};
  float out[kDims / 8][4] = {};
};

/// Scores become probabilities times exp(max), in powers of two; what was summed is rescaled.
template <int kDims>
__device__ void exponentiate(const AttentionArgs& a, std::int64_t sample, std::int64_t head,
                             std::int64_t query, std::int64_t key, bool masked, float factor,
                             float (&scores)[Shape<kDims>::kKeys / 8][4], WarpState<kDims>& state) {
  constexpr int kTiles = Shape<kDims>::kKeys / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t q = query + lane / 4 + 8 * half;
    float largest = state.max[half];
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = scores[n][2 * half + e];
        s *= factor;
        if (masked && !visible(a, q, key + 8 * n + lane % 4 * 2 + e)) s = -INFINITY;
        largest = fmaxf(largest, s);
      }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float rescale = fast_exp2(state.max[half] - largest);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& p = scores[n][2 * half + e];
        p = fast_exp2(p - largest);
        sum += p;
        if (a.dropout > 0 && !kept(a, sample, head, q, key + 8 * n + lane % 4 * 2 + e)) p = 0;
      }
    state.sum[half] = state.sum[half] * rescale + sum;  // of this lane's columns
    state.max[half] = largest;
#pragma unroll
    for (int d = 0; d < kDims / 8; ++d)
#pragma unroll
      for (int e = 0; e < 2; ++e) state.out[d][2 * half + e] *= rescale;
  }
}

template <typename T, int kDims>
__device__ void write_out(const AttentionArgs& a, std::int64_t sample, std::int64_t head,
                          std::int64_t query, WarpState<kDims>& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float keep = a.dropout < 1.0f ? 1.0f - a.dropout : 1.0f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const std::int64_t q = query + lane / 4 + 8 * half;
    if (q >= a.seq) continue;
    const float factor = 1.0f / (sum * keep);
    T* out = static_cast<T*>(a.out.data) + (sample * a.seq + q) * a.out.stride + head * kDims +
             lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < kDims / 8; ++d)
      *reinterpret_cast<std::uint32_t*>(out + 8 * d) =
          pack<T>(state.out[d][2 * half] * factor, state.out[d][2 * half + 1] * factor);
    if (lane % 4 == 0)
      a.lse[(sample * a.heads + head) * a.seq + q] = state.max[half] / kLog2e + logf(sum);
  }
}

template <typename T, int kDims>
__global__ void __launch_bounds__(kMatrixThreads, 1)
    matrix_forward_kernel(__grid_constant__ const AttentionArgs a) {
  extern __shared__ __align__(16) std::byte memory[];
  constexpr int kStride = kRowStride<kDims>, kKeys = Shape<kDims>::kKeys;
  T* queries = reinterpret_cast<T*>(memory);
  T* keys = queries + kQueries * kStride;
  T* values = keys + kKeys * kStride;
  const std::int64_t head = blockIdx.y, sample = blockIdx.z;
  const std::int64_t kv_head = head / (a.heads / a.kv_heads);
  // The longest blocks, those of the last queries, first.
  const std::int64_t first = (gridDim.x - 1 - blockIdx.x) * std::int64_t{kQueries};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t query = first + 16 * warp;
  const std::int64_t opens =
      a.window == 0 ? 0 : max(std::int64_t{0}, first - a.window + 1) / kKeys * kKeys;
  const std::int64_t last = min(first + kQueries, a.seq) - 1;  // key that any query sees

  WarpState<kDims> state;
  bring<kQueries, kDims>(a.q, sample, head, first, a, queries);
  bring<kKeys, kDims>(a.k, sample, kv_head, opens, a, keys);
  for (std::int64_t key = opens; key <= last; key += kKeys) {
    bring<kKeys, kDims>(a.v, sample, kv_head, key, a, values);
    wait_for_copies<1>();  // queries and keys
    __syncthreads();
    float scores[kKeys / 8][4];
    score<T, kDims, kKeys>(queries + 16 * warp * kStride, keys, scores);
    __syncthreads();
    const bool more = key + kKeys <= last;
    if (more) bring<kKeys, kDims>(a.k, sample, kv_head, key + kKeys, a, keys);
    // Tiles on the diagonal or at the window's edge.
    const bool masked = key + kKeys - 1 > query || (a.window > 0 && key <= query + 15 - a.window);
    exponentiate(a, sample, head, query, key, masked, a.scale * kLog2e, scores, state);
    if (more) {
      wait_for_copies<1>();  // values
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    weigh<T, kDims, kKeys>(scores, values, state.out);
    __syncthreads();
  }
  write_out<T, kDims>(a, sample, head, query, state);
}

template <typename T, int kDims>
void run(const AttentionArgs& a, NativeStream stream) {
  const auto kernel = matrix_forward_kernel<T, kDims>;
  allow_shared(kernel, Shape<kDims>::kBytes);
  const dim3 grid(static_cast<unsigned>(divided_up(a.seq, kQueries)),
                  static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch));
  kernel<<<grid, kMatrixThreads, Shape<kDims>::kBytes, stream>>>(a);
  check_launch("attention_forward");
}

template <typename T>
bool run_dims(const AttentionArgs& a, NativeStream stream) {
  switch (a.head_dim) {
    case 64:
      run<T, 64>(a, stream);
      return true;
    case 96:
      run<T, 96>(a, stream);
      return true;
    case 128:
      run<T, 128>(a, stream);
      return true;
    case 256:
      run<T, 256>(a, stream);
      return true;
    default:
      return false;
  }
}

}  // namespace

bool matrix_attention_forward(const AttentionArgs& a, NativeStream stream) {
  const bool pairs = reinterpret_cast<std::uintptr_t>(a.out.data) % 4 == 0 && a.out.stride % 2 == 0;
  if (!pairs || !wide_heads(a, {a.q, a.k, a.v})) return false;
  if (a.dtype == DType::bf16) return run_dims<bf16>(a, stream);
  if (a.dtype == DType::f16) return run_dims<f16>(a, stream);
  return false;
}

}  // namespace zero3d::kernels::cuda
