// Attention forward on the GPU, for every dtype and head dim that tensor cores do not take: one
// block per (sample, head, tile of queries) walks the tiles of keys from the window's first to the
// diagonal with a running maximum and sum.
#include <cfloat>
#include <type_traits>

#include "zero3d/kernels/cuda/attention_matrix.h"
#include "zero3d/kernels/cuda/attention_tiles.cuh"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels::cuda {
namespace {

/// The first key of the first tile that a tile of queries from `first` on sees.
__device__ std::int64_t first_key(const AttentionArgs& a, std::int64_t first, int tile) {
  return a.window == 0 ? 0 : max(std::int64_t{0}, first - a.window + 1) / tile * tile;
}

/// Running maxima and sums of a thread's rows, and the weighted sums of values.
template <int kPer, int kColumns>
struct Running {
  float max[kPer], sum[kPer], out[kPer][kColumns];
};

/// Scores become exp(score - max) in `weights`, zero where mask or dropout says.
template <int kPer, int kColumns>
__device__ void exponentiate(const AttentionArgs& a, std::int64_t sample, std::int64_t head,
                             std::int64_t query, std::int64_t key,
                             const float (&scores)[kPer][kPer], float* weights,
                             Running<kPer, kColumns>& running) {
  constexpr int kTile = kPer * kSide;
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const std::int64_t q = query + y * kPer + i;
    float largest = running.max[i];
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      if (visible(a, q, key + x + kSide * j)) largest = fmaxf(largest, scores[i][j]);
    largest = join_side(largest, [](float l, float r) { return fmaxf(l, r); });
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const std::int64_t k = key + x + kSide * j;
      float p = visible(a, q, k) ? exp_of(scores[i][j] - largest) : 0.0f;
      sum += p;
      if (a.dropout > 0 && !kept(a, sample, head, q, k)) p = 0;
      weights[(y * kPer + i) * (kTile + 1) + x + kSide * j] = p;
    }
    sum = join_side(sum, [](float l, float r) { return l + r; });
    const float rescale = exp_of(running.max[i] - largest);
    running.sum[i] = running.sum[i] * rescale + sum;
    running.max[i] = largest;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) running.out[i][c] *= rescale;
  }
}

template <typename T, int kPer, int kColumns>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(__grid_constant__ const AttentionArgs a, bool wide) {
  constexpr int kTile = kPer * kSide;
  extern __shared__ float memory[];
  const int stride = tile_stride(a), dims = static_cast<int>(a.head_dim);
  float* queries = memory;
  float* keys = queries + kTile * stride;  // then the values
  float* weights = keys + kTile * stride;  // [kTile, kTile + 1]
  const std::int64_t head = blockIdx.y, sample = blockIdx.z;
  const std::int64_t kv_head = head / (a.heads / a.kv_heads);
  // The longest blocks, those of the last queries, first.
  const std::int64_t first = (gridDim.x - 1 - blockIdx.x) * std::int64_t{kTile};

  Running<kPer, kColumns> running;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    running.max[i] = -FLT_MAX;
    running.sum[i] = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) running.out[i][c] = 0;
  }
  load_tile<kTile, T>(a.q, sample, head, first, a, wide, a.scale, queries);
  for (std::int64_t key = first_key(a, first, kTile); key <= first; key += kTile) {
    __syncthreads();
    load_tile<kTile, T>(a.k, sample, kv_head, key, a, wide, 1.0f, keys);
    __syncthreads();
    float scores[kPer][kPer];
    dot_products<kPer>(queries, keys, stride, dims, scores);
    exponentiate(a, sample, head, first, key, scores, weights, running);
    __syncthreads();
    load_tile<kTile, T>(a.v, sample, kv_head, key, a, wide, 1.0f, keys);
    __syncthreads();
    add_products<kPer, kColumns>(weights, kTile + 1, keys, stride, dims, running.out);
  }
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
  const float keep = a.dropout < 1.0f ? 1.0f - a.dropout : 1.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const std::int64_t q = first + y * kPer + i;
    if (q >= a.seq) continue;
    const float factor = 1.0f / (running.sum[i] * keep);
    T* out = static_cast<T*>(a.out.data) + (sample * a.seq + q) * a.out.stride + head * a.head_dim;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (x + kSide * c < dims) out[x + kSide * c] = narrow_to<T>(running.out[i][c] * factor);
    if (x == 0)
      a.lse[(sample * a.heads + head) * a.seq + q] = running.max[i] + logf(running.sum[i]);
  }
}

}  // namespace

void attention_forward(const AttentionArgs& a, NativeStream stream) {
  if (matrix_attention_forward(a, stream)) return;
  const bool wide = wide_heads(a, {a.q, a.k, a.v});
  with_type(a.dtype, [&](auto tag) {
    with_columns(a, [&](auto columns) {
      constexpr int kPer = columns() > 8 ? 2 : 4;  // a quarter of what long heads would need
      constexpr int kTile = kPer * kSide;
      const auto kernel = forward_kernel<decltype(tag), kPer, columns()>;
      const std::size_t bytes = 2 * tile_bytes(a, kTile) + kTile * (kTile + 1) * sizeof(float);
      allow_shared(kernel, bytes);
      const dim3 grid(static_cast<unsigned>(divided_up(a.seq, kTile)),
                      static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch));
      kernel<<<grid, kThreads, bytes, stream>>>(a, wide);
    });
  });
  check_launch("attention_forward");
}

}  // namespace zero3d::kernels::cuda
