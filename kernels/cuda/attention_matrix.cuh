// Pieces of attention on tensor cores: 16 x 8 x 16 products of bf16 or f16 with fp32 sums
// (mma.sync), their operands from shared memory (ldmatrix), and rows brought there behind the
// computation (cp.async).
//
// A warp owns 16 rows of a product. Of a 16 x 8 tile of sums, a lane holds columns 2 (lane % 4) and
// the next, of rows lane / 4 (numbers 0, 1) and lane / 4 + 8 (2, 3).
#pragma once

#include <cstdint>

#include "zero3d/core/half.h"
#include "zero3d/kernels/args/attention.h"
#include "zero3d/kernels/cuda/vectors.cuh"

namespace zero3d::kernels::cuda {

/// sums += a b of one 16 x 8 x 16 tile.
template <typename T>
__device__ inline void multiply_tile(float (&sums)[4], const std::uint32_t (&a)[4],
                                     std::uint32_t b0, std::uint32_t b1);
template <>
__device__ inline void multiply_tile<bf16>(float (&sums)[4], const std::uint32_t (&a)[4],
                                           std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply_tile<f16>(float (&sums)[4], const std::uint32_t (&a)[4],
                                          std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Four 8 x 8 matrices, whose rows lanes 0-7, 8-15, 16-23 and 24-31 point to.
__device__ inline void load_matrices(std::uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The same, each transposed.
__device__ inline void load_transposed(std::uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Two numbers rounded to T, the first in the low half.
template <typename T>
__device__ inline std::uint32_t pack(float low, float high) {
  return static_cast<std::uint32_t>(narrow_to<T>(low).bits) |
         static_cast<std::uint32_t>(narrow_to<T>(high).bits) << 16;
}

/// Starts a copy of 16 bytes to shared memory; zeros if not `there`.
__device__ inline void copy_ahead(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most kPending groups of copies are under way.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// e^x by the hardware's 2^x: within a few units in the last place of fp32.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr int kWarps = 4;  // of a block; each owns 16 rows
inline constexpr int kMatrixThreads = 32 * kWarps;
inline constexpr float kLog2e = 1.4426950408889634f;

/// Elements from one row to the next in shared memory: the rows of an ldmatrix meet different
/// banks.
template <int kDims>
inline constexpr int kRowStride = kDims + 8;

/// Starts copies of `kRows` rows of a head from `first` on; zeros past the sequence.
template <int kRows, int kDims, typename T>
__device__ void bring(const ConstRows& from, std::int64_t sample, std::int64_t head,
                      std::int64_t first, const AttentionArgs& a, T* to) {
  constexpr int kChunks = kDims / 8;
  const T* base = static_cast<const T*>(from.data) + sample * a.seq * from.stride + head * kDims;
  for (int at = static_cast<int>(threadIdx.x); at < kRows * kChunks; at += kMatrixThreads) {
    const int row = at / kChunks, d = at % kChunks * 8;
    const std::int64_t t = first + row;
    const bool there = t < a.seq;
    copy_ahead(to + row * kRowStride<kDims> + d, base + (there ? t : 0) * from.stride + d, there);
  }
  commit_copies();
}

/// scores[n] (columns 8 n on) = the warp's 16 rows times rows of `columns`, the sum over kDims.
template <typename T, int kDims, int kColumns>
__device__ void score(const T* rows, const T* columns, float (&scores)[kColumns / 8][4]) {
  constexpr int kStride = kRowStride<kDims>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = 0;
#pragma unroll
  for (int d = 0; d < kDims; d += 16) {
    std::uint32_t left[4];
    load_matrices(left, rows + (lane % 16) * kStride + d + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += 2) {
      // Columns 8 n and on, dims d and d + 8; then columns 8 (n + 1) and on.
      std::uint32_t right[4];
      load_matrices(right,
                    columns + (8 * n + lane / 16 * 8 + lane % 8) * kStride + d + lane / 8 % 2 * 8);
      multiply_tile<T>(scores[n], left, right[0], right[1]);
      multiply_tile<T>(scores[n + 1], left, right[2], right[3]);
    }
  }
}

/// sums[d] (dims 8 d on) += weights, rounded to T, times rows of `values`: the sum over kTerms.
template <typename T, int kDims, int kTerms>
__device__ void weigh(const float (&weights)[kTerms / 8][4], const T* values,
                      float (&sums)[kDims / 8][4]) {
  constexpr int kStride = kRowStride<kDims>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kTerms / 16; ++k) {
    // The sums' layout is that of the left operand.
    const auto& p = weights[2 * k];
    const auto& q = weights[2 * k + 1];
    const std::uint32_t left[4] = {pack<T>(p[0], p[1]), pack<T>(p[2], p[3]), pack<T>(q[0], q[1]),
                                   pack<T>(q[2], q[3])};
#pragma unroll
    for (int d = 0; d < kDims / 8; d += 2) {
      std::uint32_t right[4];
      load_transposed(right, values + (16 * k + lane % 16) * kStride + 8 * d + lane / 16 * 8);
      multiply_tile<T>(sums[d], left, right[0], right[1]);
      multiply_tile<T>(sums[d + 1], left, right[2], right[3]);
    }
  }
}

}  // namespace zero3d::kernels::cuda
