// Which step of a run with delayed updates does what, and which blocks are chosen.
#include "zero3d/engine/zero/delayed_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace zero3d {
namespace {

/// A letter a step: w warms up, s selects, e ends a round, b both, . neither.
std::string steps(const DelayedUpdateSettings& settings, int count) {
  std::string text;
  for (int step = 1; step <= count; ++step) {
    const DelayedStep at = delayed_step(settings, step);
    text += at.warms_up                   ? 'w'
            : at.selects && at.ends_round ? 'b'
            : at.selects                  ? 's'
            : at.ends_round               ? 'e'
                                          : '.';
    EXPECT_TRUE(!at.warms_up || (at.ends_round && !at.selects));
  }
  return text;
}

TEST(DelayedPlan, RoundsBeginAfterTheWarmUpAndChoicesAtTheirFirstStep) {
  EXPECT_EQ(steps({.update_every = 3}, 9), "s.e..e..e") << "chosen once";
  EXPECT_EQ(steps({.update_every = 3, .select_every = 3}, 9), "s.es.es.e");
  EXPECT_EQ(steps({.update_every = 3, .select_every = 6, .warm_up = 2}, 11), "wws.e..es.e");
  EXPECT_EQ(steps({.update_every = 3, .select_every = 4}, 12), "s.e..es.es.e")
      << "at the first round that begins when it is due";
  EXPECT_EQ(steps({.update_every = 1, .select_every = 2}, 5), "bebeb");
  EXPECT_EQ(steps({.update_every = 2, .select_epochs = 2, .steps_of_epoch = 2}, 8), "se.ese.e");
}

ParameterSpec parameter(const char* name, std::int64_t elements) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = Shape{elements};
  return spec;
}

ParamLayout layout_of(int shards) {
  LayoutOptions options;
  options.shards = shards;
  return ParamLayout({{parameter("a", 5000), parameter("b", 10), parameter("c", 10240)}}, options);
}

TEST(DelayedPlan, TakesTheLargestBlocksOfEachParameterAndTheFirstOfEqualOnes) {
  const ParamLayout layout = layout_of(1);  // blocks 0-4, 5, 6-15
  ASSERT_EQ(layout.unit(0).shard, 16 * 1024);
  std::vector<double> squares(16, 1);
  squares[3] = 2;
  squares[15] = 9;
  squares[8] = std::numeric_limits<double>::quiet_NaN();
  const auto chosen = [&](double share) { return choose_blocks(layout, 0, 0, share, squares); };
  EXPECT_EQ(chosen(1e-9), (std::vector<std::int64_t>{3, 5, 8})) << "at least one of each";
  EXPECT_EQ(chosen(0.2), (std::vector<std::int64_t>{3, 5, 8, 15}));
  EXPECT_EQ(chosen(0.3), (std::vector<std::int64_t>{0, 3, 5, 6, 8, 15})) << "3 of 10, not 4";
  EXPECT_EQ(chosen(1).size(), 16u);
  EXPECT_EQ(chosen(0.9999).size(), 16u);
  EXPECT_EQ(most_chosen(layout, {true}, 0.3), std::vector<std::int64_t>{6});
  EXPECT_EQ(most_chosen(layout, {false}, 0.3), std::vector<std::int64_t>{0});
}

TEST(DelayedPlan, ChoosesWithinTheShard) {
  const ParamLayout layout = layout_of(3);  // 6 blocks a shard: a and b, 6 of c, 4 of c and padding
  ASSERT_EQ(layout.unit(0).shard, 6 * 1024);
  const std::vector<double> squares(6, 1);
  EXPECT_EQ(choose_blocks(layout, 0, 0, 0.5, squares), (std::vector<std::int64_t>{0, 1, 2, 5}));
  EXPECT_EQ(choose_blocks(layout, 0, 1, 0.5, squares), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(choose_blocks(layout, 0, 2, 0.5, squares), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(choose_blocks(layout, 0, 2, 1, squares).size(), 4u) << "no padding";
  EXPECT_EQ(most_chosen(layout, {true}, 0.5), std::vector<std::int64_t>{4}) << "of any rank";
}

}  // namespace
}  // namespace zero3d
