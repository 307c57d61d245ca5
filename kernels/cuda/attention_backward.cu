// Attention backward on the GPU, for every dtype and head dim that tensor cores do not take. Two
// kernels recompute the probabilities tile by tile: a block of the first owns a tile of keys and
// sums the gradients of keys and values over all queries that see them, query heads in order; a
// block of the second owns a tile of queries. Nothing is added by two blocks, so that the sums'
// order is fixed.
#include <type_traits>

#include "zero3d/kernels/cuda/attention_matrix.h"
#include "zero3d/kernels/cuda/attention_tiles.cuh"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels::cuda {
namespace {

struct Pass {
  AttentionArgs a;
  ConstRows dout;
  const float *lse, *delta;  // [batch, heads, seq]; delta: dout . out
  Rows dq, dk, dv;
  bool wide;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(__grid_constant__ const AttentionGradientArgs g, float* delta) {
  const AttentionArgs& a = g.forward;
  const std::int64_t rows = a.batch * a.heads * a.seq;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const std::int64_t t = row % a.seq, head = row / a.seq % a.heads, sample = row / a.seq / a.heads;
  const std::int64_t column = head * a.head_dim;
  const T* dout =
      static_cast<const T*>(g.dout.data) + (sample * a.seq + t) * g.dout.stride + column;
  const T* out = static_cast<const T*>(g.out.data) + (sample * a.seq + t) * g.out.stride + column;
  float sum = 0;
  for (std::int64_t d = threadIdx.x % 32; d < a.head_dim; d += 32)
    sum = __fmaf_rn(widen(dout[d]), widen(out[d]), sum);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) delta[row] = sum;
}

/// Of one query and key: the kept, scaled probability, and the gradient of the score.
struct Differential {
  float p, ds;
};
__device__ Differential differentiate(const Pass& pass, std::int64_t sample, std::int64_t head,
                                      std::int64_t query, std::int64_t key, float score, float dp,
                                      float lse, float delta) {
  const AttentionArgs& a = pass.a;
  if (!visible(a, query, key)) return {0, 0};
  const float p = exp_of(score - lse);
  if (a.dropout <= 0) return {p, p * (dp - delta)};
  const float scale = a.dropout < 1.0f ? 1.0f / (1.0f - a.dropout) : 0.0f;
  const bool keeps = kept(a, sample, head, query, key);
  return {keeps ? p * scale : 0.0f, p * ((keeps ? dp * scale : 0.0f) - delta)};
}

/// Stores a thread's sums of rows first on, times `factor`.
template <typename T, int kPer, int kColumns>
__device__ void store_rows(const Pass& pass, const Rows& to, std::int64_t sample, std::int64_t head,
                           std::int64_t first, const float (&sums)[kPer][kColumns], float factor) {
  const AttentionArgs& a = pass.a;
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const std::int64_t t = first + y * kPer + i;
    if (t >= a.seq) continue;
    T* row = static_cast<T*>(to.data) + (sample * a.seq + t) * to.stride + head * a.head_dim;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (x + kSide * c < static_cast<int>(a.head_dim))
        row[x + kSide * c] = narrow_to<T>(sums[i][c] * factor);
  }
}

template <int kPer>
struct Tiles {
  static constexpr int kTile = kPer * kSide;
  static constexpr int kScores = kTile + 1;  // elements a row
  float *own, *own_other;                    // keys and values, or queries and dout
  float *seen, *seen_other;                  // the others
  float *first, *second;                     // [kTile, kScores]
  float *lse, *delta;                        // of the queries

  __device__ Tiles(float* memory, int stride) {
    own = memory;
    own_other = own + kTile * stride;
    seen = own_other + kTile * stride;
    seen_other = seen + kTile * stride;
    first = seen_other + kTile * stride;
    second = first + kTile * kScores;
    lse = second + kTile * kScores;
    delta = lse + kTile;
  }
  static std::size_t bytes(const AttentionArgs& a) {
    return 4 * tile_bytes(a, kTile) + (2 * kTile * kScores + 2 * kTile) * sizeof(float);
  }
};

template <int kPer>
__device__ void load_numbers(const Pass& pass, std::int64_t sample, std::int64_t head,
                             std::int64_t query, const Tiles<kPer>& tiles) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= Tiles<kPer>::kTile) return;
  const bool there = query + i < pass.a.seq;
  const std::int64_t at = (sample * pass.a.heads + head) * pass.a.seq + query + i;
  tiles.lse[i] = there ? pass.lse[at] : 0.0f;
  tiles.delta[i] = there ? pass.delta[at] : 0.0f;
}

/// A block per (tile of keys, key/value head, sample).
template <typename T, int kPer, int kColumns>
__global__ void __launch_bounds__(kThreads, 2) keys_kernel(__grid_constant__ const Pass pass) {
  extern __shared__ float memory[];
  constexpr int kTile = kPer * kSide;
  const AttentionArgs& a = pass.a;
  const int stride = tile_stride(a), dims = static_cast<int>(a.head_dim);
  const Tiles<kPer> tiles(memory, stride);
  const std::int64_t first = blockIdx.x * std::int64_t{kTile}, kv_head = blockIdx.y;
  const std::int64_t sample = blockIdx.z, group = a.heads / a.kv_heads;
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
  // The last query that sees the last key of the tile.
  const std::int64_t last =
      a.window == 0 ? a.seq - 1 : min(a.seq - 1, first + kTile + a.window - 2);
  float dk[kPer][kColumns] = {}, dv[kPer][kColumns] = {};
  load_tile<kTile, T>(a.k, sample, kv_head, first, a, pass.wide, 1.0f, tiles.own);
  load_tile<kTile, T>(a.v, sample, kv_head, first, a, pass.wide, 1.0f, tiles.own_other);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (std::int64_t query = first; query <= last; query += kTile) {
      __syncthreads();
      load_tile<kTile, T>(a.q, sample, head, query, a, pass.wide, a.scale, tiles.seen);
      load_tile<kTile, T>(pass.dout, sample, head, query, a, pass.wide, 1.0f, tiles.seen_other);
      load_numbers(pass, sample, head, query, tiles);
      __syncthreads();
      float scores[kPer][kPer], gradients[kPer][kPer];
      dot_products<kPer>(tiles.own, tiles.seen, stride, dims, scores);
      dot_products<kPer>(tiles.own_other, tiles.seen_other, stride, dims, gradients);
#pragma unroll
      for (int i = 0; i < kPer; ++i)
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
          const int q = x + kSide * j, k = y * kPer + i;
          const Differential found =
              differentiate(pass, sample, head, query + q, first + k, scores[i][j], gradients[i][j],
                            tiles.lse[q], tiles.delta[q]);
          tiles.first[k * tiles.kScores + q] = found.p;
          tiles.second[k * tiles.kScores + q] = found.ds;
        }
      __syncthreads();
      add_products<kPer, kColumns>(tiles.first, tiles.kScores, tiles.seen_other, stride, dims, dv);
      add_products<kPer, kColumns>(tiles.second, tiles.kScores, tiles.seen, stride, dims, dk);
    }
  store_rows<T>(pass, pass.dk, sample, kv_head, first, dk, 1.0f);
  store_rows<T>(pass, pass.dv, sample, kv_head, first, dv, 1.0f);
}

/// A block per (tile of queries, head, sample).
template <typename T, int kPer, int kColumns>
__global__ void __launch_bounds__(kThreads, 2) queries_kernel(__grid_constant__ const Pass pass) {
  extern __shared__ float memory[];
  constexpr int kTile = kPer * kSide;
  const AttentionArgs& a = pass.a;
  const int stride = tile_stride(a), dims = static_cast<int>(a.head_dim);
  const Tiles<kPer> tiles(memory, stride);
  const std::int64_t first = (gridDim.x - 1 - blockIdx.x) * std::int64_t{kTile};
  const std::int64_t head = blockIdx.y, sample = blockIdx.z;
  const std::int64_t kv_head = head / (a.heads / a.kv_heads);
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
  const std::int64_t opens =
      a.window == 0 ? 0 : max(std::int64_t{0}, first - a.window + 1) / kTile * kTile;
  float dq[kPer][kColumns] = {};
  load_tile<kTile, T>(a.q, sample, head, first, a, pass.wide, a.scale, tiles.own);
  load_tile<kTile, T>(pass.dout, sample, head, first, a, pass.wide, 1.0f, tiles.own_other);
  load_numbers(pass, sample, head, first, tiles);
  for (std::int64_t key = opens; key <= first; key += kTile) {
    __syncthreads();
    load_tile<kTile, T>(a.k, sample, kv_head, key, a, pass.wide, 1.0f, tiles.seen);
    load_tile<kTile, T>(a.v, sample, kv_head, key, a, pass.wide, 1.0f, tiles.seen_other);
    __syncthreads();
    float scores[kPer][kPer], gradients[kPer][kPer];
    dot_products<kPer>(tiles.own, tiles.seen, stride, dims, scores);
    dot_products<kPer>(tiles.own_other, tiles.seen_other, stride, dims, gradients);
#pragma unroll
    for (int i = 0; i < kPer; ++i)
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int q = y * kPer + i, k = x + kSide * j;
        tiles.first[q * tiles.kScores + k] =
            differentiate(pass, sample, head, first + q, key + k, scores[i][j], gradients[i][j],
                          tiles.lse[q], tiles.delta[q])
                .ds;
      }
    __syncthreads();
    add_products<kPer, kColumns>(tiles.first, tiles.kScores, tiles.seen, stride, dims, dq);
  }
  store_rows<T>(pass, pass.dq, sample, head, first, dq, a.scale);
}

template <typename T, int kPer, int kColumns>
void run(const Pass& pass, NativeStream stream) {
  const AttentionArgs& a = pass.a;
  const std::size_t bytes = Tiles<kPer>::bytes(a);
  const auto tiles = static_cast<unsigned>(divided_up(a.seq, kPer * kSide));
  const auto batch = static_cast<unsigned>(a.batch);
  const auto of_keys = keys_kernel<T, kPer, kColumns>;
  const auto of_queries = queries_kernel<T, kPer, kColumns>;
  allow_shared(of_keys, bytes);
  allow_shared(of_queries, bytes);
  of_keys<<<dim3(tiles, static_cast<unsigned>(a.kv_heads), batch), kThreads, bytes, stream>>>(pass);
  of_queries<<<dim3(tiles, static_cast<unsigned>(a.heads), batch), kThreads, bytes, stream>>>(pass);
}

}  // namespace

void attention_backward(const AttentionGradientArgs& g, NativeStream stream) {
  const AttentionArgs& a = g.forward;
  const Pass pass{a,    g.dout, g.lse, g.scratch,
                  g.dq, g.dk,   g.dv,  wide_heads(a, {a.q, a.k, a.v, g.dout})};
  const std::int64_t rows = a.batch * a.heads * a.seq;
  with_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    delta_kernel<T>
        <<<static_cast<unsigned>(divided_up(rows, kThreads / 32)), kThreads, 0, stream>>>(
            g, g.scratch);
    if (matrix_attention_backward({a, g.dout, g.lse, g.scratch, g.dq, g.dk, g.dv}, stream)) return;
    with_columns(a, [&](auto columns) {
      constexpr int kColumns = columns();
      constexpr int kPer = (kColumns > 8) ? 1 : 2;  // what shared memory has room for
      run<T, kPer, kColumns>(pass, stream);
    });
  });
  check_launch("attention_backward");
}

}  // namespace zero3d::kernels::cuda
