#include "zero3d/core/half.h"

#include <cmath>

namespace zero3d {

float to_float(f16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

f16 to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u)
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and above round to infinity
  if (magnitude <
      0x38800000u) {  // below 2^-14: a subnormal, in units of 2^-24; nearbyint rounds to even
    const float units = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return {static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(units)))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace zero3d
