// bf16 and fp16 storage types with correctly rounded scalar conversion (to nearest, ties to even).
// Vector code converts by its own instructions and must agree with these bit for bit, NaN payloads
// excepted.
#pragma once

#include <bit>
#include <cstdint>

namespace zero3d {

struct bf16 {
  std::uint16_t bits;
};
struct f16 {
  std::uint16_t bits;
};

inline float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline bf16 to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};  // quiet NaN
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

float to_float(f16 value);
f16 to_f16(float value);

inline float to_float(float value) { return value; }

/// `value` rounded to T and back: what a store to a T tensor leaves.
template <typename T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline bf16 from_float<bf16>(float value) {
  return to_bf16(value);
}
template <>
inline f16 from_float<f16>(float value) {
  return to_f16(value);
}

}  // namespace zero3d
