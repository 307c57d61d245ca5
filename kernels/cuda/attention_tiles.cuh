// What the passes of the plain attention share on the GPU: tiles of rows in shared memory as fp32,
// products of two tiles, and which keys a query sees. A block has 16 x 16 threads: thread (y, x)
// takes rows y * kPer on of a tile's product, and columns x, x + 16, ...
#pragma once

#include "zero3d/kernels/args/attention.h"
#include "zero3d/kernels/cuda/functions.cuh"
#include "zero3d/kernels/cuda/launch.cuh"

namespace zero3d::kernels::cuda {

inline constexpr int kSide = 16;  // threads along a side; kSide * kSide == kThreads

/// Elements from one row of a tile to the next: odd for even head dims, so that threads of a warp
/// that read one column of many rows meet different banks.
__device__ inline int tile_stride(const AttentionArgs& a) {
  return static_cast<int>(a.head_dim) + 1;
}
inline std::size_t tile_bytes(const AttentionArgs& a, int tile) {
  return static_cast<std::size_t>(tile) * static_cast<std::size_t>(a.head_dim + 1) * sizeof(float);
}

/// to[r, d] = factor * rows first + r of the sample, columns of one head; zero from `seq` on.
template <int kTile, typename T>
__device__ void load_tile(const ConstRows& from, std::int64_t sample, std::int64_t head,
                          std::int64_t first, const AttentionArgs& a, bool wide, float factor,
                          float* to) {
  const int dims = static_cast<int>(a.head_dim), stride = tile_stride(a);
  const T* base =
      static_cast<const T*>(from.data) + (sample * a.seq + first) * from.stride + head * a.head_dim;
  if (wide) {
    const int groups = dims / kWide;
    for (int at = static_cast<int>(threadIdx.x); at < kTile * groups; at += kThreads) {
      const int row = at / groups, d = at % groups * kWide;
      Floats<kWide> value{};
      if (first + row < a.seq) value = load<kWide>(base + row * from.stride + d);
#pragma unroll
      for (int k = 0; k < kWide; ++k) to[row * stride + d + k] = value.v[k] * factor;
    }
    return;
  }
  for (int at = static_cast<int>(threadIdx.x); at < kTile * dims; at += kThreads) {
    const int row = at / dims, d = at % dims;
    to[row * stride + d] = first + row < a.seq ? widen(base[row * from.stride + d]) * factor : 0.0f;
  }
}

/// products[i][j] = rows[y kPer + i] . columns[x + 16 j].
template <int kPer>
__device__ inline void dot_products(const float* rows, const float* columns, int stride, int dims,
                                    float (&products)[kPer][kPer]) {
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) products[i][j] = 0;
  for (int d = 0; d < dims; ++d) {
    float left[kPer], right[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) left[i] = rows[(y * kPer + i) * stride + d];
#pragma unroll
    for (int j = 0; j < kPer; ++j) right[j] = columns[(x + kSide * j) * stride + d];
#pragma unroll
    for (int i = 0; i < kPer; ++i)
#pragma unroll
      for (int j = 0; j < kPer; ++j) products[i][j] = __fmaf_rn(left[i], right[j], products[i][j]);
  }
}

/// sums[i][c] += sum over k of weights[y kPer + i, k] * tile[k, x + 16 c].
template <int kPer, int kColumns>
__device__ inline void add_products(const float* weights, int weights_stride, const float* tile,
                                    int stride, int dims, float (&sums)[kPer][kColumns]) {
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
  for (int k = 0; k < kPer * kSide; ++k) {
    float weight[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) weight[i] = weights[(y * kPer + i) * weights_stride + k];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = x + kSide * c;
      if (d >= dims) continue;
      const float value = tile[k * stride + d];
#pragma unroll
      for (int i = 0; i < kPer; ++i) sums[i][c] = __fmaf_rn(weight[i], value, sums[i][c]);
    }
  }
}

__device__ inline bool visible(const AttentionArgs& a, std::int64_t query, std::int64_t key) {
  return query < a.seq && key <= query && (a.window == 0 || key > query - a.window);
}

/// Whether dropout keeps the probability of a query and a key.
__device__ inline bool kept(const AttentionArgs& a, std::int64_t sample, std::int64_t head,
                            std::int64_t query, std::int64_t key) {
  const auto element =
      static_cast<std::uint64_t>(((a.head_offset + head) * a.seq + query) * a.seq + key);
  return kept(a.key, a.key.sample + static_cast<std::uint64_t>(sample), element, a.dropout);
}

/// The sum or maximum over the 16 threads of one y.
template <typename Join>
__device__ inline float join_side(float value, const Join& join) {
#pragma unroll
  for (int step = kSide / 2; step > 0; step /= 2)
    value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

/// Rows of a head can be read 16 bytes at a time.
inline bool wide_heads(const AttentionArgs& a, std::initializer_list<ConstRows> all) {
  bool wide = wide_rows({a.head_dim});
  for (const ConstRows& rows : all) wide = wide && aligned({rows.data}) && wide_rows({rows.stride});
  return wide;
}

/// body(columns) with columns * 16 >= head_dim as a compile-time value.
template <typename Body>
void with_columns(const AttentionArgs& a, const Body& body) {
  if (a.head_dim <= kSide) return body(std::integral_constant<int, 1>());
  if (a.head_dim <= 4 * kSide) return body(std::integral_constant<int, 4>());
  if (a.head_dim <= 8 * kSide) return body(std::integral_constant<int, 8>());
  if (a.head_dim <= 16 * kSide) return body(std::integral_constant<int, 16>());
  throw_invalid(concat("attention on a GPU: expected a head_dim of at most ", 16 * kSide,
                       ", but it is ", a.head_dim));
}

template <typename Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "shared memory of attention");
}

}  // namespace zero3d::kernels::cuda
