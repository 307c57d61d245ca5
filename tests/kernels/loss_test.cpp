// Cross-entropy against fp64: value, gradient, ignored targets, extremes.
#include "zero3d/kernels/loss.h"

#include <limits>

#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using namespace test;

double log_sum_exp(const Values& x, std::size_t begin, std::size_t count) {
  double max = x[begin], sum = 0;
  for (std::size_t i = 0; i < count; ++i) max = std::max(max, x[begin + i]);
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(x[begin + i] - max);
  return max + std::log(sum);
}

struct Tensors {
  View logits, targets, lse, loss;
};

Tensors run(Kit& kit, DType dtype, std::int64_t rows, std::int64_t vocabulary, double seed,
            Values* before = nullptr, bool backward = true) {
  Tensors r;
  r.logits = kit.random(dtype, {rows, vocabulary}, "logits", 4);
  r.targets = kit.filled(DType::i32, {rows}, [&](std::int64_t i) {
    return i % 5 == 3 ? static_cast<double>(kIgnoreTarget)
                      : static_cast<double>((i * 7919 + 1) % vocabulary);
  });
  r.lse = kit.output(DType::f32, {rows});
  r.loss = kit.output(DType::f32, {2});
  if (before != nullptr) *before = kit.read(r.logits);
  cross_entropy_forward(kit.stream(), r.logits, r.targets, r.lse, r.loss);
  if (backward)
    cross_entropy_backward(kit.stream(), r.logits, r.targets, r.lse, r.loss,
                           kit.from(DType::f32, {1}, {seed}));
  return r;
}

TEST(CrossEntropy, MatchesTheReference) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t vocabulary : {1, 2, 17, 333, 2047, 2049, 5003}) {
        Kit kit;
        const std::int64_t rows = 9;
        Values logits;
        const double seed = 64;
        const Tensors r = run(kit, dtype, rows, vocabulary, seed, &logits);
        const Values targets = kit.read(r.targets);
        const auto v = static_cast<std::size_t>(vocabulary);
        double sum = 0, count = 0;
        for (const double target : targets) count += target >= 0;
        Values want(logits.size(), 0.0), lse(static_cast<std::size_t>(rows), 0.0);
        for (std::size_t row = 0; row < targets.size(); ++row) {
          if (targets[row] < 0) continue;
          lse[row] = log_sum_exp(logits, row * v, v);
          const auto target = static_cast<std::size_t>(targets[row]);
          sum += lse[row] - logits[row * v + target];
          for (std::size_t i = 0; i < v; ++i)
            want[row * v + i] =
                (std::exp(logits[row * v + i] - lse[row]) - (i == target ? 1 : 0)) * seed / count;
        }
        const Values loss = kit.read(r.loss);
        EXPECT_NEAR(loss[0], sum, 1e-5 * (1 + sum)) << vocabulary;
        EXPECT_EQ(loss[1], count);
        expect_close(kit.read(r.lse), lse, DType::f32, 8, 1e-6, "lse");
        expect_close(kit.read(r.logits), want, dtype, dtype == DType::f32 ? 64 : 1.1,
                     dtype == DType::f16 ? 6e-8 : 1e-5, "dlogits");
      }
  });
}

TEST(CrossEntropy, GradientIsTheSlopeOfTheMeanLoss) {
  Kit kit;
  Values logits;
  const Tensors r = run(kit, DType::f32, 7, 13, 1, &logits);
  const Values targets = kit.read(r.targets);
  const Values want = numeric_gradient(logits, [&](const Values& x) {
    double sum = 0, count = 0;
    for (std::size_t row = 0; row < 7; ++row)
      if (targets[row] >= 0) {
        sum += log_sum_exp(x, row * 13, 13) - x[row * 13 + static_cast<std::size_t>(targets[row])];
        ++count;
      }
    return sum / count;
  });
  expect_close(kit.read(r.logits), want, DType::f32, 32, 1e-6, "dlogits");
}

TEST(CrossEntropy, BitsDependNeitherOnThreadsNorOnAlignment) {
  for (const DType dtype : float_dtypes())
    expect_same_bits(
        [&](Kit& kit) {
          const Tensors r = run(kit, dtype, 31, 3001, 1);
          return kit.bits(r.logits) + kit.bits(r.lse) + kit.bits(r.loss);
        },
        "cross entropy");
}

/// Tiles of whole blocks of the sums give the bits of the whole; others its value.
TEST(CrossEntropy, InTilesIsThatOfTheWhole) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::vector<std::int64_t>& cut :
           {std::vector<std::int64_t>{2048, 2048, 905}, {4096, 905}, {7, 1, 4993}, {5001}}) {
        const std::int64_t rows = 9, vocabulary = 5001;
        Kit kit;
        const Tensors whole = run(kit, dtype, rows, vocabulary, 1, nullptr, false);
        const Values logits = kit.read(whole.logits);
        const View seed = kit.from(DType::f32, {1}, {64});
        const View state = kit.output(DType::f32, {3, rows});
        const View lse = kit.output(DType::f32, {rows}), loss = kit.output(DType::f32, {2});
        std::vector<View> tiles;
        std::int64_t first = 0;
        for (const std::int64_t count : cut) {
          tiles.push_back(kit.filled(dtype, {rows, count}, [&](std::int64_t i) {
            return logits[static_cast<std::size_t>(i / count * vocabulary + first + i % count)];
          }));
          cross_entropy_statistics(kit.stream(), tiles.back(), whole.targets,
                                   {first, count, vocabulary}, state,
                                   first == 0 ? Statistics::begin : Statistics::go_on);
          first += count;
        }
        cross_entropy_join(kit.stream(), state, whole.targets, lse, loss);
        if (cut[0] % 2048 == 0 || cut[0] == vocabulary) {
          EXPECT_EQ(kit.bits(lse), kit.bits(whole.lse));
          EXPECT_EQ(kit.bits(loss), kit.bits(whole.loss));
        }
        expect_close(kit.read(lse), kit.read(whole.lse), DType::f32, 4, 1e-6, "lse");
        EXPECT_NEAR(kit.read(loss)[0], kit.read(whole.loss)[0], 1e-4);
        cross_entropy_backward(kit.stream(), whole.logits, whole.targets, lse, loss, seed);
        const Values gradient = kit.read(whole.logits);
        first = 0;
        for (const View& tile : tiles) {
          cross_entropy_backward(kit.stream(), tile, whole.targets, lse, loss, seed,
                                 {first, tile.shape().last(), vocabulary});
          const Values part = kit.read(tile);
          const auto count = static_cast<std::size_t>(tile.shape().last());
          for (std::size_t i = 0; i < part.size(); ++i)
            ASSERT_EQ(part[i], gradient[i / count * static_cast<std::size_t>(vocabulary) +
                                        static_cast<std::size_t>(first) + i % count]);
          first += tile.shape().last();
        }
      }
  });
}

TEST(CrossEntropy, TilesNameWhatLiesOutsideTheVocabulary) {
  Kit kit;
  const View logits = kit.random(DType::f32, {3, 11}, "logits");
  const View state = kit.output(DType::f32, {3, 3});
  const View targets = kit.from(DType::i32, {3}, {1, 40, 2});
  EXPECT_THROW(cross_entropy_statistics(kit.stream(), logits, targets, {30, 11, 40}, state), Error);
  cross_entropy_statistics(kit.stream(), logits, targets, {22, 11, 33}, state);
  EXPECT_NE(kit.failure().find("target 1 is 40"), std::string::npos) << kit.failure();
}

TEST(CrossEntropy, AllIgnoredIsZero) {
  Kit kit;
  const View logits = kit.random(DType::bf16, {3, 11}, "logits");
  const View targets = kit.filled(DType::i32, {3}, [](std::int64_t) { return kIgnoreTarget; });
  const View lse = kit.output(DType::f32, {3});
  const View loss = kit.output(DType::f32, {2});
  cross_entropy_forward(kit.stream(), logits, targets, lse, loss);
  cross_entropy_backward(kit.stream(), logits, targets, lse, loss,
                         kit.from(DType::f32, {1}, {1024}));
  EXPECT_EQ(kit.read(loss), (Values{0, 0}));
  EXPECT_EQ(kit.read(logits), Values(33, 0.0));
}

TEST(CrossEntropy, ACountOfZeroMeansNoGradient) {
  Kit kit;
  const View logits = kit.random(DType::f32, {2, 7}, "logits");
  cross_entropy_backward(kit.stream(), logits, kit.from(DType::i32, {2}, {1, 2}),
                         kit.from(DType::f32, {2}, {3, 3}), kit.from(DType::f32, {2}, {5, 0}),
                         kit.from(DType::f32, {1}, {1}));
  EXPECT_EQ(kit.read(logits), Values(14, 0.0));
}

TEST(CrossEntropy, BearsMaskedAndHugeLogitsAndKeepsNan) {
  for_each_target([] {
    Kit kit;
    const double inf = std::numeric_limits<double>::infinity();
    const std::int64_t vocabulary = 2100;  // a first block of nothing but -inf
    const View logits = kit.filled(DType::f32, {3, vocabulary}, [&](std::int64_t i) {
      const std::int64_t row = i / vocabulary, column = i % vocabulary;
      if (row == 0) return column < 2060 ? -inf : 1.0;
      if (row == 1) return column == 5 ? 3e38 : -3e38;
      return column == 77 ? std::nan("") : 0.0;
    });
    const View targets = kit.from(DType::i32, {3}, {2070, 5, 1});
    const View lse = kit.output(DType::f32, {3});
    const View loss = kit.output(DType::f32, {2});
    cross_entropy_forward(kit.stream(), logits, targets, lse, loss);
    const Values got = kit.read(lse);
    EXPECT_NEAR(got[0], 1 + std::log(40.0), 1e-6);
    EXPECT_EQ(got[1], static_cast<double>(3e38f));
    EXPECT_TRUE(std::isnan(got[2]));
    EXPECT_TRUE(std::isnan(kit.read(loss)[0]));
    cross_entropy_backward(kit.stream(), logits, targets, lse, loss,
                           kit.from(DType::f32, {1}, {3}));
    const Values d = kit.read(logits);
    EXPECT_EQ(d[0], 0);
    EXPECT_NEAR(d[2070], 1 / 40.0 - 1, 1e-6);
    EXPECT_NEAR(d[2069], 1 / 40.0, 1e-6);
    EXPECT_EQ(d[2100 + 5], 0);
    EXPECT_TRUE(std::isnan(d[2 * 2100]));
  });
}

TEST(CrossEntropy, NamesATargetOutsideTheVocabulary) {
  for (const int bad : {-1, 11, -101}) {
    Kit kit;
    const View targets = kit.from(DType::i32, {3}, {1, static_cast<double>(bad), 2});
    cross_entropy_forward(kit.stream(), kit.random(DType::f32, {3, 11}, "logits"), targets,
                          kit.output(DType::f32, {3}), kit.output(DType::f32, {2}));
    EXPECT_NE(kit.failure().find(concat("target 1 is ", bad)), std::string::npos) << kit.failure();
  }
}

}  // namespace
}  // namespace zero3d::kernels
