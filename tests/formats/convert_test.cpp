// Conversion between floating dtypes rounds once; doubles are compared with a search over all
// 16-bit values.
#include "zero3d/formats/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace zero3d {
namespace {

/// The nearest finite T to `value`, ties to even, by search over the bit patterns of its sign; for
/// values below the largest T.
template <typename T>
std::uint16_t nearest_bits(double value) {
  std::uint16_t low = 0;
  std::uint16_t high = std::is_same_v<T, bf16> ? 0x7f7f : 0x7bff;
  const double magnitude = std::fabs(value);
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (static_cast<double>(to_float(T{middle})) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - static_cast<double>(to_float(T{low}));
  const double above = static_cast<double>(to_float(T{high})) - magnitude;
  const std::uint16_t best = below != above ? (below < above ? low : high) : low % 2 ? high : low;
  return static_cast<std::uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

template <typename T>
void expect_single_rounding(double value) {
  T rounded;
  if constexpr (std::is_same_v<T, bf16>) {
    rounded = to_bf16(value);
  } else {
    rounded = to_f16(value);
  }
  EXPECT_EQ(rounded.bits, nearest_bits<T>(value)) << std::hexfloat << value;
}

TEST(Convert, RoundsDoublesOnce) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const double scale = std::ldexp(1.0, static_cast<int>(random() % 36) - 24);
    const double value = (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) * scale;
    expect_single_rounding<bf16>(value);
    expect_single_rounding<f16>(value);
  }
}

TEST(Convert, RoundsDoublesNearTiesOnce) {
  // Just above a tie of the 16-bit type, by less than a float can tell: rounding through float
  // loses it.
  for (int bit = 30; bit <= 50; ++bit) {
    for (const double sign : {1.0, -1.0}) {
      const double step = std::ldexp(1.0, -bit);
      expect_single_rounding<bf16>(sign * (1.0 + 0x1p-8 + step));
      expect_single_rounding<bf16>(sign * (1.0 + 0x1p-8 - step));
      expect_single_rounding<f16>(sign * (1.0 + 0x1p-11 + step));
      expect_single_rounding<f16>(sign * (1.0 + 3 * 0x1p-11 - step));
      expect_single_rounding<f16>(sign * 0x1p-25 * (1.0 + step));
    }
  }
}

TEST(Convert, KeepsInfinityNaNAndSignedZero) {
  EXPECT_EQ(to_bf16(-0.0).bits, 0x8000);
  EXPECT_EQ(to_f16(HUGE_VAL).bits, 0x7c00);
  EXPECT_EQ(to_bf16(-HUGE_VAL).bits, 0xff80);
  EXPECT_EQ(to_f16(65520.0).bits, 0x7c00);
  EXPECT_EQ(to_f16(65519.999999999).bits, 0x7bff);
  EXPECT_EQ(to_bf16(1e300).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::nan("")))));
}

TEST(Convert, AllPairsAgreeWithScalarsAtAnyAlignment) {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  for (const std::size_t count : {0u, 1u, 2u, 3u, 7u, 17u, 1031u}) {
    std::vector<double> exact(count);  // representable everywhere
    for (std::size_t i = 0; i < count; ++i) exact[i] = static_cast<double>(i % 257) / 8 - 16;
    for (const DType from : dtypes) {
      for (const DType to : dtypes) {
        std::vector<std::byte> a(count * 8 + 1), b(count * 8 + 1), back(count * 8 + 1);
        convert_elements(DType::f64, reinterpret_cast<const std::byte*>(exact.data()), from,
                         a.data() + 1, count);
        convert_elements(from, a.data() + 1, to, b.data() + 1, count);
        convert_elements(to, b.data() + 1, DType::f64, back.data(), count);
        EXPECT_TRUE(count == 0 || std::memcmp(back.data(), exact.data(), count * 8) == 0)
            << name_of(from) << " to " << name_of(to);
      }
    }
  }
  EXPECT_FALSE(is_convertible(DType::i32, DType::f32));
  EXPECT_TRUE(is_convertible(DType::i32, DType::i32));
}

}  // namespace
}  // namespace zero3d
