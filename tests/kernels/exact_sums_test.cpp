// Exact sums over ranges have the bits of ExactSum on the host, and name the first value that is
// not finite; totals round once.
#include "zero3d/kernels/exact_sums.h"

#include <limits>

#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using namespace test;

constexpr auto kSumBytes = static_cast<std::int64_t>(sizeof(ExactSum));

/// Values of very different magnitude, as f64 in the kit's memory.
Values spread_values(std::int64_t count) {
  Values values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(std::ldexp(random_normal(1, 2, static_cast<std::uint64_t>(i)),
                                static_cast<int>(i * 37 % 200) - 100));
  return values;
}

ExactSum sum_of(const Values& values, std::size_t first, std::size_t count) {
  ExactSum sum;
  for (std::size_t i = first; i < first + count; ++i) sum.add(values[i]);
  return sum;
}

TEST(ExactSums, AddUpTheRangesOfEachSum) {
  Kit kit;
  const Values values = spread_values(100);
  const View in = kit.from(DType::f64, {100}, values);
  const View sums = kit.output(DType::u8, {3 * kSumBytes});
  const View bad = kit.output(DType::i64, {2});
  const SumRange ranges[] = {{0, 40, 2}, {60, 40, 2}, {40, 20, 0}};
  exact_sums(kit.stream(), in, ranges, sums, bad);
  ExactSum got[3];
  const std::string bits = kit.bits(sums);
  std::memcpy(got, bits.data(), sizeof got);
  ExactSum both = sum_of(values, 0, 40);
  both.add(sum_of(values, 60, 40));
  EXPECT_EQ(got[0], sum_of(values, 40, 20));
  EXPECT_EQ(got[1], ExactSum());
  EXPECT_EQ(got[2], both);
  EXPECT_EQ(kit.read(bad), (Values{-1, 0}));
}

TEST(ExactSums, NameTheFirstRangeWithAValueThatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const auto& [first, second] : {std::pair(inf, nan), std::pair(nan, inf)}) {
    Kit kit;
    Values values(50, 1.0);
    values[3] = nan;  // in no range
    values[7] = first;
    values[30] = second;
    const SumRange ranges[] = {{0, 2, 0, 70}, {20, 30, 0, 71}, {5, 10, 0, 72}};
    const View bad = kit.output(DType::i64, {2});
    exact_sums(kit.stream(), kit.from(DType::f64, {50}, values), ranges,
               kit.output(DType::u8, {kSumBytes}), bad);
    EXPECT_EQ(kit.read(bad), (Values{71, std::isnan(second) ? 1.0 : 0.0}));
  }
}

TEST(ExactSums, TotalsOverPartsDoNotDependOnTheCut) {
  Kit kit;
  const Values values = spread_values(90);
  const View in = kit.from(DType::f64, {90}, values);
  const View sums = kit.output(DType::u8, {2 * 3 * kSumBytes});  // 3 parts of 2 sums
  const SumRange ranges[] = {{0, 10, 0}, {10, 30, 2}, {40, 20, 4}, {60, 5, 1}, {65, 25, 5}};
  exact_sums(kit.stream(), in, ranges, sums, {});
  const View totals = kit.output(DType::f64, {2});
  exact_totals(kit.stream(), sums, 3, totals);
  EXPECT_EQ(kit.read(totals),
            (Values{sum_of(values, 0, 60).value(), sum_of(values, 60, 30).value()}));
}

TEST(ExactSums, RefuseRangesOutside) {
  Kit kit;
  const View in = kit.from(DType::f64, {4}, Values(4, 1.0));
  const View sums = kit.output(DType::u8, {kSumBytes});
  for (const SumRange& range : {SumRange{2, 3, 0}, SumRange{0, 4, 1}, SumRange{-1, 2, 0}})
    EXPECT_THROW(exact_sums(kit.stream(), in, {&range, 1}, sums, {}), Error);
}

}  // namespace
}  // namespace zero3d::kernels
