// Conversions to narrower types: the same number, or an error that names it.
#include "zero3d/core/narrow.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

TEST(Narrow, KeepsTheNumberOrRefusesIt) {
  EXPECT_EQ(narrow<int>(std::int64_t{2147483647}, "a"), 2147483647);
  EXPECT_EQ(narrow<int>(std::int64_t{-2147483647} - 1, "a"), -2147483647 - 1);
  EXPECT_EQ(narrow<std::uint8_t>(255, "a"), 255);
  EXPECT_EQ(test::message_of<Error>([] { narrow<int>(std::int64_t{4294967300}, "fp16.power"); }),
            "fp16.power is 4294967300; expected a number from -2147483648 to 2147483647");
  EXPECT_THROW(narrow<int>(std::int64_t{-2147483649}, "a"), Error);
  EXPECT_THROW(narrow<unsigned>(-1, "a"), Error);
  EXPECT_THROW(narrow<std::int64_t>(std::uint64_t{1} << 63, "a"), Error);
}

TEST(Narrow, RoundsFiniteNumbersToFiniteOnes) {
  EXPECT_EQ(narrow<float>(0.1, "a"), 0.1f);
  EXPECT_EQ(narrow<float>(-3.4028234663852886e38, "a"), std::numeric_limits<float>::lowest());
  EXPECT_EQ(narrow<float>(std::numeric_limits<double>::infinity(), "a"),
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(narrow<float>(std::nan(""), "a")));
  EXPECT_THROW(narrow<float>(3.5e38, "a"), Error);
  EXPECT_THROW(narrow<float>(-1e300, "a"), Error);
}

}  // namespace
}  // namespace zero3d
