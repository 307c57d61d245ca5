// Functions that several families use on the GPU: the CPU's exponential and activations, operation
// by operation (kernels/cpu/simd-inl.h, activation.cpp), its random words, and sums over a warp or
// a block in a fixed order.
#pragma once

#include <cstdint>

#include "zero3d/core/random.h"

namespace zero3d::kernels::cuda {

/// As the CPU's exp: for x <= 88, 0 below -87.3, NaN stays NaN.
__device__ inline float exp_of(float x) {
  const float magic = 12582912.0f + 127.0f;
  const float shifted = __fmaf_rn(x, 1.44269504f, magic);
  const float n = __fsub_rn(shifted, magic);
  const float power = __uint_as_float(__float_as_uint(shifted) << 23);
  const float r = __fmaf_rn(-n, -2.12194440e-4f, __fmaf_rn(-n, 0.693359375f, x));
  float p = 1.381453988e-3f;
  p = __fmaf_rn(p, r, 8.368745127e-3f);
  p = __fmaf_rn(p, r, 4.166839079e-2f);
  p = __fmaf_rn(p, r, 1.666652040e-1f);
  p = __fmaf_rn(p, r, 4.999999343e-1f);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  return x < -87.3f ? 0.0f : __fmul_rn(p, power);
}

/// exp(-v), finite for every v.
__device__ inline float bounded_exp_of_minus(float v) { return exp_of(fminf(-v, 87.0f)); }

inline constexpr float kGeluSlope = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 1.5957691216057308f * 0.044715f;

__device__ inline float gelu_of(float x) {
  const float v = __fmul_rn(x, __fmaf_rn(__fmul_rn(x, x), kGeluCubic, kGeluSlope));
  return __fdiv_rn(x, __fadd_rn(1.0f, bounded_exp_of_minus(v)));
}

__device__ inline float gelu_slope(float x) {
  const float near = fmaxf(fminf(x, 20.0f), -20.0f);
  const float square = __fmul_rn(near, near);
  const float e = bounded_exp_of_minus(__fmul_rn(near, __fmaf_rn(square, kGeluCubic, kGeluSlope)));
  const float sigmoid = __fdiv_rn(1.0f, __fadd_rn(1.0f, e));
  const float dv = __fmaf_rn(square, 3 * kGeluCubic, kGeluSlope);
  return __fmaf_rn(__fmul_rn(x, __fmul_rn(__fmul_rn(e, sigmoid), sigmoid)), dv, sigmoid);
}

__device__ inline float silu_of(float x) {
  return __fdiv_rn(x, __fadd_rn(1.0f, bounded_exp_of_minus(x)));
}

__device__ inline float silu_slope(float x) {
  const float e = bounded_exp_of_minus(x);
  const float sigmoid = __fdiv_rn(1.0f, __fadd_rn(1.0f, e));
  return __fmul_rn(sigmoid, __fmaf_rn(x, __fmul_rn(e, sigmoid), 1.0f));
}

/// RandomKey::word of elements 4 * block to 4 * block + 3.
__device__ inline uint4 random_words(const RandomKey& key, std::uint64_t sample,
                                     std::uint64_t block) {
  uint4 c = {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(sample),
             static_cast<std::uint32_t>(sample >> 32), key.layer};
  std::uint32_t k0 = static_cast<std::uint32_t>(key.seed) ^
                     static_cast<std::uint32_t>(key.seed >> 32) * 0x85EBCA6Bu;
  std::uint32_t k1 = key.step;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x;
    const std::uint32_t h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
    c = {h1 ^ c.y ^ k0, l1, h0 ^ c.w ^ k1, l0};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// Whether dropout keeps what has this word.
__device__ inline bool kept(std::uint32_t word, float p) {
  const float number = static_cast<float>(static_cast<std::int32_t>(word >> 8));
  return __fmul_rn(__fadd_rn(number, 0.5f), 1.0f / 16777216.0f) >= p;
}

__device__ inline bool kept(const RandomKey& key, std::uint64_t sample, std::uint64_t element,
                            float p) {
  const uint4 words = random_words(key, sample, element >> 2);
  const std::uint32_t at = static_cast<std::uint32_t>(element) & 3u;
  return kept(at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w, p);
}

template <typename T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

/// The sum over a block of kThreads, in every thread; `shared` has kThreads / 32 elements, and may
/// be used again after the call.
template <int kThreads, typename T>
__device__ inline T block_sum(T value, T* shared) {
  static_assert(kThreads % 32 == 0);
  value = warp_sum(value);
  if constexpr (kThreads == 32) return value;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) shared[warp] = value;
  __syncthreads();
  T sum = shared[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) sum += shared[i];
  __syncthreads();
  return sum;
}

}  // namespace zero3d::kernels::cuda
