// Element types of tensors, their sizes and the names other formats give them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "zero3d/core/half.h"

namespace zero3d {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u16, u8 };

std::size_t size_of(DType dtype);
/// Of so many elements, as counts of bytes are kept: signed.
inline std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}
/// "fp32", "bf16", "fp16", "int32", ...: how ds_config and our messages name it.
std::string_view name_of(DType dtype);
bool is_floating(DType dtype);
inline bool is_16bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<std::uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace zero3d
