// Philox against the published known answers, and the moments of the normal stream.
#include "zero3d/core/random.h"

#include <gtest/gtest.h>

namespace zero3d {
namespace {

TEST(Philox, KnownAnswers) {  // Random123's kat_vectors for philox4x32-10
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t f = 0xffffffffu;
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  double sum = 0, squares = 0;
  const int count = 100000;
  for (int i = 0; i < count; ++i) {
    const double x = random_normal(7, 11, static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 1, 0.02);
}

TEST(Random, KeyedWordsDifferBySampleElementAndLayer) {
  RandomKey key{1, 2, 3, 4};
  const std::uint32_t word = key.word(4, 5);
  EXPECT_EQ(word, key.word(4, 5));
  EXPECT_NE(word, key.word(5, 5));
  EXPECT_NE(word, key.word(4, 6));
  key.layer = 4;
  EXPECT_NE(word, key.word(4, 5));
}

}  // namespace
}  // namespace zero3d
