// Loads and stores on the GPU: runs of f32, bf16 and f16 as registers of fp32, 16 bytes at a time
// where the run is long enough, with the conversions of core/half.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "zero3d/core/half.h"

namespace zero3d::kernels::cuda {

/// Elements that a thread takes at once where rows and pointers are aligned: 16 bytes of 16-bit
/// elements, twice 16 of fp32.
inline constexpr int kWide = 8;

template <int n>
struct Floats {
  float v[n];
};

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}
__device__ inline float widen(f16 value) { return __half2float(__ushort_as_half(value.bits)); }

template <typename T>
__device__ inline T narrow_to(float value);
template <>
__device__ inline float narrow_to<float>(float value) {
  return value;
}
template <>
__device__ inline bf16 narrow_to<bf16>(float value) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}
template <>
__device__ inline f16 narrow_to<f16>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}

/// What a store to T and a load would leave.
template <typename T>
__device__ inline float round_to(float value) {
  return widen(narrow_to<T>(value));
}

/// The bytes of n elements, moved by the widest access that they fill.
template <typename T, int n>
struct alignas(n * sizeof(T) < 16 ? n * sizeof(T) : 16) Packed {
  T v[n];
};

template <int n, typename T>
__device__ inline Floats<n> load(const T* from) {
  Floats<n> to;
  if constexpr (n == 1) {
    to.v[0] = widen(*from);
  } else {
    constexpr int kStep = n * sizeof(T) < 16 ? n : 16 / sizeof(T);
    using Word = Packed<T, kStep>;
#pragma unroll
    for (int i = 0; i < n; i += kStep) {
      Word word;
      if constexpr (sizeof(Word) == 16) {
        *reinterpret_cast<uint4*>(&word) = *reinterpret_cast<const uint4*>(from + i);
      } else {
        word = *reinterpret_cast<const Word*>(from + i);
      }
#pragma unroll
      for (int j = 0; j < kStep; ++j) to.v[i + j] = widen(word.v[j]);
    }
  }
  return to;
}

template <int n, typename T>
__device__ inline void store(const Floats<n>& from, T* to) {
  if constexpr (n == 1) {
    *to = narrow_to<T>(from.v[0]);
  } else {
    constexpr int kStep = n * sizeof(T) < 16 ? n : 16 / sizeof(T);
    using Word = Packed<T, kStep>;
#pragma unroll
    for (int i = 0; i < n; i += kStep) {
      Word word;
#pragma unroll
      for (int j = 0; j < kStep; ++j) word.v[j] = narrow_to<T>(from.v[i + j]);
      if constexpr (sizeof(Word) == 16) {
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(&word);
      } else {
        *reinterpret_cast<Word*>(to + i) = word;
      }
    }
  }
}

/// operation(i) of each of n elements.
template <int n, typename Operation>
__device__ inline Floats<n> each(const Operation& operation) {
  Floats<n> result;
#pragma unroll
  for (int i = 0; i < n; ++i) result.v[i] = operation(i);
  return result;
}

}  // namespace zero3d::kernels::cuda
