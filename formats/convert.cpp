#include "zero3d/formats/convert.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "zero3d/core/error.h"

namespace zero3d {
namespace {

/// `value` as a float whose last bit is 1 whenever the float is not exact. A later rounding to at
/// most 22 bits of significand then gives what rounding `value` itself would (Boldo and Melquiond,
/// "Emulation of a FMA and correctly rounded sums", 2008).
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if ((bits & 1u) == 0) {
    bits += std::fabs(static_cast<double>(nearest)) < std::fabs(value) ? 1u : ~0u;
  }
  return std::bit_cast<float>(bits);
}

template <typename T>
T load(const std::byte* src) {
  T value;
  std::memcpy(&value, src, sizeof value);
  return value;
}

float widened(float value) { return value; }
float widened(bf16 value) { return to_float(value); }
float widened(f16 value) { return to_float(value); }
double widened(double value) { return value; }

void narrow(float value, float& out) { out = value; }
void narrow(float value, double& out) { out = static_cast<double>(value); }
void narrow(double value, float& out) { out = static_cast<float>(value); }
void narrow(double value, double& out) { out = value; }
template <typename T>
void narrow(T value, bf16& out) {
  out = to_bf16(value);
}
template <typename T>
void narrow(T value, f16& out) {
  out = to_f16(value);
}

template <typename From, typename To>
void convert(const std::byte* src, std::byte* dst, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    To value;
    narrow(widened(load<From>(src + i * sizeof(From))), value);
    std::memcpy(dst + i * sizeof(To), &value, sizeof(To));
  }
}

template <typename From>
void convert_from(const std::byte* src, DType to, std::byte* dst, std::size_t count) {
  switch (to) {
    case DType::f32:
      return convert<From, float>(src, dst, count);
    case DType::bf16:
      return convert<From, bf16>(src, dst, count);
    case DType::f16:
      return convert<From, f16>(src, dst, count);
    default:
      return convert<From, double>(src, dst, count);
  }
}

}  // namespace

bf16 to_bf16(double value) { return to_bf16(round_to_odd(value)); }
f16 to_f16(double value) { return to_f16(round_to_odd(value)); }

bool is_convertible(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

void convert_elements(DType from, const std::byte* src, DType to, std::byte* dst,
                      std::size_t count) {
  ZERO3D_CHECK(is_convertible(from, to), "conversion between dtypes that are not both floating");
  if (from == to) {
    if (count > 0) std::memcpy(dst, src, count * size_of(from));
    return;
  }
  switch (from) {
    case DType::f32:
      return convert_from<float>(src, to, dst, count);
    case DType::bf16:
      return convert_from<bf16>(src, to, dst, count);
    case DType::f16:
      return convert_from<f16>(src, to, dst, count);
    default:
      return convert_from<double>(src, to, dst, count);
  }
}

}  // namespace zero3d
