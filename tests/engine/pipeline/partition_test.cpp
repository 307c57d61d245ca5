// How blocks are dealt to the segments of a pipeline: against all ways to do it, and what is
// refused.
#include "zero3d/engine/pipeline/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "zero3d/core/error.h"
#include "zero3d/core/random.h"

namespace zero3d::test {
namespace {

std::vector<PartitionBlock> blocks_of(const std::vector<std::int64_t>& parameters) {
  std::vector<PartitionBlock> blocks;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    blocks.push_back({"h." + std::to_string(i), parameters[i]});
  return blocks;
}

std::int64_t heaviest(const std::vector<std::int64_t>& weights, const std::vector<int>& bounds) {
  std::int64_t most = 0;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    most = std::max(most, std::accumulate(weights.begin() + bounds[i],
                                          weights.begin() + bounds[i + 1], std::int64_t{0}));
  }
  return most;
}

/// The least of all ways to cut `weights` in `segments`.
std::int64_t least_heaviest(const std::vector<std::int64_t>& weights, int segments) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::vector<int> bounds{0};
  const auto count = static_cast<int>(weights.size());
  const std::function<void()> cut = [&] {
    if (static_cast<int>(bounds.size()) == segments) {
      bounds.push_back(count);
      least = std::min(least, heaviest(weights, bounds));
      bounds.pop_back();
      return;
    }
    for (int next = bounds.back() + 1; next < count; ++next) {
      bounds.push_back(next);
      cut();
      bounds.pop_back();
    }
  };
  cut();
  return least;
}

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Partition, TheHeaviestSegmentIsAsLightAsCanBe) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const auto draw = [seed](std::uint32_t i) { return philox4x32({i, 0, 0, 0}, {seed, 5})[0]; };
    const int count = 2 + static_cast<int>(draw(0) % 8);
    const int segments = 1 + static_cast<int>(draw(1) % static_cast<std::uint32_t>(count));
    std::vector<std::int64_t> weights;
    for (int i = 0; i < count; ++i) weights.push_back(draw(2 + static_cast<std::uint32_t>(i)) % 20);
    const std::vector<int> bounds = balance(weights, segments);
    ASSERT_EQ(static_cast<int>(bounds.size()), segments + 1);
    EXPECT_EQ(bounds.front(), 0);
    EXPECT_EQ(bounds.back(), count);
    EXPECT_TRUE(std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) ==
                bounds.end())
        << "no segment is empty";
    EXPECT_EQ(heaviest(weights, bounds), least_heaviest(weights, segments));
  }
}

TEST(Partition, PP03DealsByEveryMethod) {
  const auto five = blocks_of({7, 7, 7, 7, 7});
  const std::vector<int> expected{0, 2, 3, 4, 5};
  EXPECT_EQ(partition_blocks(parse_partition("uniform"), five, 4), expected);
  EXPECT_EQ(partition_blocks(parse_partition("parameters"), five, 4), expected);
  EXPECT_EQ(partition_blocks(parse_partition("best"), five, 4), expected);
  EXPECT_EQ(partition_blocks(parse_partition("1,1,2,1"), five, 4),
            (std::vector<int>{0, 1, 2, 4, 5}));
  auto blocks = blocks_of({1, 1, 1, 1, 1, 1});
  blocks.front().name = "embedding";
  blocks.back().name = "head";
  EXPECT_EQ(partition_blocks(parse_partition("type:^H\\."), blocks, 2),
            (std::vector<int>{0, 3, 6}));
  EXPECT_EQ(describe(parse_partition("type:h")), "type:h");
  EXPECT_EQ(describe(parse_partition("3,1")), "3,1");
}

TEST(Partition, PP03RefusesWithWhatWouldWork) {
  const auto three = blocks_of({1, 1, 1});
  for (const char* method : {"uniform", "parameters", "type:h", "1,1,1,1"}) {
    const std::string text = message([&] { partition_blocks(parse_partition(method), three, 4); });
    EXPECT_NE(text.find("3 blocks, and the pipeline 4"), std::string::npos) << text;
  }
  EXPECT_NE(message([&] { partition_blocks(parse_partition("1,1"), three, 2); }).find("2,1"),
            std::string::npos);
  EXPECT_NE(message([&] { partition_blocks(parse_partition("type:conv"), three, 2); }).find("h.0"),
            std::string::npos);
  EXPECT_NE(message([&] { parse_partition("type:("); }).find("no regular expression"),
            std::string::npos);
  for (const char* wrong : {"", "profile", "2,0,1", "2,", "2;1", "-1,4"})
    EXPECT_NE(message([&] { parse_partition(wrong); }).find("there is no partition"),
              std::string::npos)
        << wrong;
}

}  // namespace
}  // namespace zero3d::test
