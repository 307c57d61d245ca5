// Conversions to 16 bits and back: every bit pattern, and rounding at the midpoints.
#include "zero3d/core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace zero3d {
namespace {

TEST(Half, EveryF16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(wide))));
    } else {
      EXPECT_EQ(to_f16(wide).bits, value.bits) << bits;
    }
  }
}

TEST(Half, EveryBf16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bf16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(wide))));
    } else {
      EXPECT_EQ(to_bf16(wide).bits, value.bits) << bits;
    }
  }
}

TEST(Half, MidpointsOfF16RoundToEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = to_float(f16{static_cast<std::uint16_t>(bits)});
    const double high = to_float(f16{static_cast<std::uint16_t>(bits + 1)});
    const auto middle = static_cast<float>((low + high) / 2);  // exact in fp32
    EXPECT_EQ(to_f16(middle).bits, (bits & 1) ? bits + 1 : bits);
    EXPECT_EQ(to_f16(std::nextafter(middle, 1e30f)).bits, bits + 1);
    EXPECT_EQ(to_f16(std::nextafter(middle, -1e30f)).bits, bits);
  }
}

TEST(Half, OverflowGoesToInfinity) {
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
}

}  // namespace
}  // namespace zero3d
