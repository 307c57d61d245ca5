// Samples, their order over steps, ranks and epochs, and the state that resumes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "zero3d/core/error.h"
#include "zero3d/data/dataset.h"
#include "zero3d/data/permutation.h"
#include "zero3d/data/sampler.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

using test::message_of;
using test::TemporaryFolder;
using Tokens = std::vector<std::int32_t>;

/// A file of `count` tokens: 0, 1, 2, ...
TokenFile counting(const TemporaryFolder& folder, std::size_t count) {
  std::vector<std::uint16_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  return TokenFile(folder.write(
      "counting.bin",
      std::string_view(reinterpret_cast<const char*>(tokens.data()), count * sizeof(tokens[0]))));
}

TEST(Permutation, IsABijectionOfEverySize) {
  for (std::int64_t count = 1; count <= 300; ++count) {
    std::vector<bool> hit(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t to = permuted(11, static_cast<std::uint64_t>(count), i, count);
      ASSERT_TRUE(to >= 0 && to < count);
      ASSERT_FALSE(hit[static_cast<std::size_t>(to)]);
      hit[static_cast<std::size_t>(to)] = true;
    }
  }
  for (const std::int64_t count : {4095, 4096, 4097, 65537, 100003}) {
    std::vector<bool> hit(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      hit[static_cast<std::size_t>(permuted(3, 1, i, count))] = true;
    }
    EXPECT_TRUE(std::all_of(hit.begin(), hit.end(), [](bool b) { return b; }));
  }
}

TEST(Permutation, HandlesSizesThatNoTableHolds) {
  for (const std::int64_t count : {(std::int64_t{1} << 40) + 7, std::int64_t{1} << 62}) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 1000; ++i) {
      const std::int64_t to = permuted(1, 2, count - 1 - i, count);
      EXPECT_TRUE(to >= 0 && to < count);
      EXPECT_TRUE(seen.insert(to).second);
    }
    EXPECT_GT(*seen.rbegin() - *seen.begin(), count / 2);
  }
}

TEST(Permutation, ReachesAllOrdersOfSmallSetsEvenly) {
  std::map<std::vector<std::int64_t>, int> orders;
  constexpr int kDraws = 6000;
  for (int seed = 0; seed < kDraws; ++seed) {
    std::vector<std::int64_t> order;
    for (int i = 0; i < 3; ++i)
      order.push_back(permuted(static_cast<std::uint64_t>(seed), 0, i, 3));
    ++orders[order];
  }
  EXPECT_EQ(orders.size(), 6u);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, kDraws / 6, 200);
}

TEST(Permutation, DependsOnSeedAndEpochAndLooksRandom) {
  constexpr std::int64_t kCount = 10007;
  for (const auto& [seed, epoch] : {std::pair{1u, 1u}, {2u, 0u}, {1u, 2u}}) {
    std::int64_t fixed = 0;
    std::int64_t ascents = 0;
    std::int64_t equal = 0;
    for (std::int64_t i = 0; i + 1 < kCount; ++i) {
      fixed += permuted(seed, epoch, i, kCount) == i;
      ascents += permuted(seed, epoch, i, kCount) < permuted(seed, epoch, i + 1, kCount);
      equal += permuted(seed, epoch, i, kCount) == permuted(1, 0, i, kCount);
    }
    EXPECT_LT(fixed, 12);
    EXPECT_LT(equal, 12);
    EXPECT_NEAR(static_cast<double>(ascents), kCount / 2.0, 200);
  }
}

TEST(Dataset, CutsSamplesThatOverlapByOneToken) {
  TemporaryFolder folder;
  for (const std::int64_t length : {1, 2, 3, 7, 10, 96}) {
    const Dataset data(counting(folder, 97), length, 97);
    EXPECT_EQ(data.samples(), 96 / length);
    for (std::int64_t i = 0; i < data.samples(); ++i) {
      Tokens inputs(static_cast<std::size_t>(length)), targets(inputs.size());
      data.read(i, inputs.data(), targets.data());
      for (std::int64_t t = 0; t < length; ++t) {
        EXPECT_EQ(inputs[static_cast<std::size_t>(t)], i * length + t);
        EXPECT_EQ(targets[static_cast<std::size_t>(t)], i * length + t + 1);
      }
    }
    EXPECT_EQ(data.check(), 96);
  }
}

TEST(Dataset, RefusesDataShorterThanASample) {
  TemporaryFolder folder;
  const std::string message = message_of<Error>([&] { Dataset(counting(folder, 97), 97, 97); });
  EXPECT_NE(message.find("97 tokens and their targets need 98 tokens"), std::string::npos)
      << message;
  EXPECT_NE(message.find("counting.bin (u16, 97 tokens)"), std::string::npos) << message;
  EXPECT_THROW(Dataset(counting(folder, 97), 0, 97), Error);
  EXPECT_THROW(Dataset(counting(folder, 97), 8, 0), Error);
}

TEST(Dataset, NamesTheTokenBeyondTheVocabulary) {
  TemporaryFolder folder;
  const Dataset data(counting(folder, 97), 8, 88);
  Tokens inputs(8), targets(8);
  data.read(9, inputs.data(), targets.data());  // 72..80
  const std::string message =
      message_of<IoError>([&] { data.read(10, inputs.data(), targets.data()); });
  EXPECT_NE(message.find("counting.bin, token 88: is 88, the model's vocabulary has 88"),
            std::string::npos)
      << message;
  EXPECT_EQ(message_of<IoError>([&] { data.check(); }), message);
}

TEST(Sampler, FollowsTheSequentialRule) {
  TemporaryFolder folder;
  const Dataset data(counting(folder, 71), 5, 71);  // 14 samples
  for (const BatchSplit split : {BatchSplit{1, 1, 1}, {2, 1, 2}, {3, 2, 2}, {2, 3, 4}, {5, 1, 3}}) {
    Sampler sampler(data, split, {});
    for (std::int64_t step = 0; step < 4; ++step, sampler.advance()) {
      for (std::int64_t m = 0; m < split.accumulation; ++m) {
        for (std::int64_t r = 0; r < split.data_parallel; ++r) {
          const Batch batch = sampler.read(m, r);
          EXPECT_EQ(batch.rows, split.micro_batch);
          EXPECT_EQ(batch.first_in_step, (m * split.data_parallel + r) * split.micro_batch);
          for (std::int64_t b = 0; b < split.micro_batch; ++b) {
            const std::int64_t position =
                ((step * split.accumulation + m) * split.data_parallel + r) * split.micro_batch + b;
            EXPECT_EQ(batch.first_position + b, position);
            const auto row = static_cast<std::size_t>(b * 5);
            EXPECT_EQ(batch.tokens[row], position % 14 * 5);
            EXPECT_EQ(batch.targets[row + 4], position % 14 * 5 + 5);
          }
        }
      }
    }
  }
}

/// First tokens of all rows of `steps` steps, in global order.
Tokens rows_of(Sampler& sampler, int steps) {
  Tokens rows;
  for (int step = 0; step < steps; ++step, sampler.advance()) {
    for (std::int64_t m = 0; m < sampler.split().accumulation; ++m) {
      for (std::int64_t r = 0; r < sampler.split().data_parallel; ++r) {
        const Batch batch = sampler.read(m, r);
        for (std::int64_t b = 0; b < batch.rows; ++b) {
          rows.push_back(batch.tokens[static_cast<std::size_t>(b * batch.sequence_length)]);
        }
      }
    }
  }
  return rows;
}

TEST(Sampler, ShuffledEpochsVisitEverySampleOnce) {
  TemporaryFolder folder;
  const Dataset data(counting(folder, 361), 5, 361);  // 72 samples
  Sampler sampler(data, {3, 2, 2}, {true, 5});
  std::set<Tokens> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_DOUBLE_EQ(sampler.epoch(), epoch);
    Tokens rows = rows_of(sampler, 6);
    orders.insert(rows);
    std::sort(rows.begin(), rows.end());
    for (std::size_t i = 0; i < 72; ++i) ASSERT_EQ(rows[i], static_cast<std::int32_t>(i * 5));
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST(Sampler, AnySplitSeesTheSameGlobalBatches) {
  TemporaryFolder folder;
  const Dataset data(counting(folder, 361), 5, 361);
  for (const bool shuffle : {false, true}) {
    Sampler reference(data, {12, 1, 1}, {shuffle, 9});
    const Tokens expected = rows_of(reference, 20);
    for (const BatchSplit split :
         {BatchSplit{1, 12, 1}, {1, 1, 12}, {2, 3, 2}, {3, 2, 2}, {4, 1, 3}, {6, 2, 1}}) {
      Sampler sampler(data, split, {shuffle, 9});
      EXPECT_EQ(rows_of(sampler, 20), expected);
    }
  }
}

TEST(Sampler, OneIntegerResumesOnAnySplit) {
  TemporaryFolder folder;
  const Dataset data(counting(folder, 361), 5, 361);
  Sampler straight(data, {2, 3, 2}, {true, 4});
  const Tokens expected = rows_of(straight, 11);
  Sampler before(data, {2, 3, 2}, {true, 4});
  Tokens rows = rows_of(before, 7);
  Sampler after(data, {4, 1, 3}, {true, 4});
  after.restore(before.consumed());
  EXPECT_EQ(after.consumed(), 84);
  const Tokens rest = rows_of(after, 4);
  rows.insert(rows.end(), rest.begin(), rest.end());
  EXPECT_EQ(rows, expected);
  EXPECT_THROW(after.restore(-1), Error);
  EXPECT_THROW(Sampler(data, {0, 1, 1}, {}), Error);
}

}  // namespace
}  // namespace zero3d
