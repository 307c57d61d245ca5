// The exact accumulator: order-independence, cancellation, and the single rounding at the end.
#include "zero3d/core/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace zero3d {
namespace {

TEST(ExactSum, EveryOrderAndSplitGivesTheSameBits) {
  std::mt19937_64 random(1);
  std::vector<double> terms;
  for (int i = 0; i < 1000; ++i) {
    terms.push_back(std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random),
                               static_cast<int>(random() % 200) - 100));
  }
  ExactSum straight;
  for (double term : terms) straight.add(term);
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(terms.begin(), terms.end(), random);
    ExactSum parts[3];
    for (std::size_t i = 0; i < terms.size(); ++i) parts[random() % 3].add(terms[i]);
    ExactSum merged;
    for (const ExactSum& part : parts) merged.add(part);
    EXPECT_EQ(merged.value(), straight.value());
    EXPECT_TRUE(merged == straight);
  }
}

TEST(ExactSum, CancelsExactly) {
  ExactSum sum;
  for (double term : {1e300, 1.0, -1e300, 1e-300}) sum.add(term);
  EXPECT_EQ(sum.value(), 1.0);
  sum.add(-1.0);
  EXPECT_EQ(sum.value(), 1e-300);
  sum.add(-1e-300);
  EXPECT_EQ(sum.value(), 0.0);
}

TEST(ExactSum, SingleTermsComeBack) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 2000; ++i) {
    const double term = std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random),
                                   static_cast<int>(random() % 2000) - 1000);
    ExactSum sum;
    sum.add(term);
    EXPECT_EQ(sum.value(), term);
  }
}

/// Down to the least subnormal, the sums and differences of the smallest numbers are exact.
TEST(ExactSum, TheSmallestTermsAddUpToo) {
  for (int exponent = -1074; exponent <= -1000; ++exponent) {
    const double odd = std::ldexp(1.0, exponent) + std::ldexp(1.0, -1074);
    for (const double term : {std::ldexp(1.0, exponent), -odd}) {
      ExactSum sum;
      sum.add(term);
      EXPECT_EQ(sum.value(), term) << exponent;
      for (int i = 0; i < 4; ++i) sum.add(term);
      EXPECT_EQ(sum.value(), 5 * term) << exponent;
      for (int i = 0; i < 5; ++i) sum.add(-term);
      EXPECT_TRUE(sum == ExactSum()) << exponent;
    }
  }
}

TEST(ExactSum, RoundsOnceToNearestEven) {
  ExactSum sum;  // 2^53 + 1 is a tie that goes to 2^53; any speck above it goes up
  sum.add(9007199254740992.0);
  sum.add(1.0);
  EXPECT_EQ(sum.value(), 9007199254740992.0);
  sum.add(1e-200);
  EXPECT_EQ(sum.value(), 9007199254740994.0);
}

TEST(ExactSum, NonFiniteTermsAreKept) {
  const double inf = std::numeric_limits<double>::infinity();
  ExactSum sum;
  sum.add(inf);
  EXPECT_EQ(sum.value(), inf);
  EXPECT_FALSE(sum.finite());
  ExactSum other;
  other.add(-inf);
  EXPECT_EQ(other.value(), -inf);
  sum.add(other);
  EXPECT_TRUE(std::isnan(sum.value()));
}

TEST(ExactSum, SurvivesManyAdditions) {
  ExactSum sum;
  for (int i = 0; i < 3000000; ++i) sum.add(0.1);
  EXPECT_NEAR(sum.value(), 300000.0, 1e-9);
}

}  // namespace
}  // namespace zero3d
