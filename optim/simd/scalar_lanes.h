// The vector operations of bodies-inl.h on one plain float. Same names as vector_lanes-inl.h, same
// IEEE operations.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "zero3d/core/half.h"

namespace zero3d::simd::scalar_lanes {

struct FloatTag {};
struct OneTag {};
inline std::int64_t lanes(FloatTag) { return 1; }

template <class D, class T>
float load(D, const T* from) {
  return to_float(*from);
}
template <class D, class T>
void store(D, float v, T* to) {
  *to = from_float<T>(v);
}

template <class D>
float set(D, float v) {
  return v;
}
inline float add(float a, float b) { return a + b; }
inline float sub(float a, float b) { return a - b; }
inline float mul(float a, float b) { return a * b; }
inline float div(float a, float b) { return a / b; }
inline float sqrt(float a) { return std::sqrt(a); }
/// negative where a < 0, else positive; NaN counts as positive.
inline float select_by_sign(float a, float negative, float positive) {
  return a < 0 ? negative : positive;
}
/// a xor (b and mask), bit by bit.
template <class D>
float xor_masked(D, float a, float b, std::uint32_t mask) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) ^
                              (std::bit_cast<std::uint32_t>(b) & mask));
}

}  // namespace zero3d::simd::scalar_lanes
