// Properties of the pure plans: layouts, fetches and buckets, over random models, rank counts and
// knobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/fetch_plan.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {
namespace {

using Blocks = std::vector<std::vector<ParameterSpec>>;

ParameterSpec spec(const std::string& name, std::int64_t numel, bool frozen = false) {
  ParameterSpec result;
  result.name = name;
  result.shape = Shape{numel};
  result.frozen = frozen;
  return result;
}

Blocks random_model(std::mt19937& random) {
  const std::int64_t sizes[] = {0, 1, 7, 1023, 1024, 1025, 5000, 70001};
  Blocks blocks(1 + random() % 12);
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    const std::size_t count = 1 + random() % 4;
    for (std::size_t i = 0; i < count; ++i) {
      blocks[block].push_back(
          spec(concat("b", block, ".p", i), sizes[random() % std::size(sizes)], random() % 8 == 0));
    }
  }
  if (blocks.size() > 2 && random() % 2 == 0)
    blocks.back().push_back(blocks.front().front());  // tied
  return blocks;
}

TEST(ParamLayout, EveryElementIsOwnedOnceAndPaddingByNobody) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    LayoutOptions options;
    options.shards = 1 + static_cast<int>(random() % 5);
    options.persistence = random() % 2 == 0;
    options.param_persistence_threshold = 1024;
    const ParamLayout layout(random_model(random), options);
    for (int unit = 0; unit < layout.unit_count(); ++unit) {
      const Unit& entry = layout.unit(unit);
      EXPECT_EQ(entry.padded, entry.shard * options.shards);
      EXPECT_EQ(entry.shard % ParamLayout::kAlignment, 0);
      std::vector<std::int64_t> owned(layout.parameters().size());
      std::int64_t covered = 0;
      for (int rank = 0; rank < options.shards; ++rank) {
        for (const ParameterRun& run : layout.runs(unit, rank * entry.shard, entry.shard)) {
          EXPECT_EQ(run.first, owned[static_cast<std::size_t>(run.parameter)])
              << "runs of a parameter follow each other over the ranks";
          EXPECT_EQ(layout.parameter(run.parameter).offset + run.first,
                    rank * entry.shard + run.offset);
          owned[static_cast<std::size_t>(run.parameter)] += run.count;
          covered += run.count;
        }
      }
      for (int index : entry.parameters) {
        EXPECT_EQ(owned[static_cast<std::size_t>(index)], layout.parameter(index).numel());
        EXPECT_EQ(layout.parameter(index).offset % ParamLayout::kAlignment, 0);
        EXPECT_EQ(layout.parameter(index).spec.frozen, entry.frozen);
        EXPECT_EQ(layout.parameter(index).persistent, entry.persistent);
      }
      std::int64_t gaps = 0;
      for (const auto& [begin, end] : layout.gaps(unit)) gaps += end - begin;
      EXPECT_EQ(covered + gaps, entry.padded);
      EXPECT_EQ(covered, entry.numel);
    }
  }
}

TEST(ParamLayout, ATiedParameterIsOneUnitOfItsOwn) {
  const ParamLayout layout(
      {{spec("wte", 5000), spec("wpe", 100)}, {spec("w", 10)}, {spec("ln", 3), spec("wte", 5000)}},
      {.shards = 2});
  const int wte = layout.find("wte");
  EXPECT_EQ(layout.parameter(wte).blocks, (std::vector<int>{0, 2}));
  EXPECT_EQ(layout.unit(layout.parameter(wte).unit).parameters, (std::vector<int>{wte}));
  EXPECT_EQ(layout.parameters().size(), 4u);
  EXPECT_EQ(layout.numel(), 5113);
}

TEST(ParamLayout, OneNameWithTwoShapesIsRefused) {
  try {
    const ParamLayout layout({{spec("w", 5)}, {spec("w", 6)}}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[5] and [6]"), std::string::npos) << error.what();
  }
}

TEST(ParamLayout, PersistenceStopsAtTheModelThreshold) {
  LayoutOptions options;
  options.shards = 2;
  options.persistence = true;
  options.param_persistence_threshold = 100;
  options.model_persistence_threshold = 150;
  const ParamLayout layout({{spec("a", 100), spec("b", 60), spec("c", 50), spec("d", 101)}},
                           options);
  EXPECT_TRUE(layout.parameter(0).persistent);
  EXPECT_FALSE(layout.parameter(1).persistent);  // 160 would pass the model's; the scan goes on
  EXPECT_TRUE(layout.parameter(2).persistent);
  EXPECT_FALSE(layout.parameter(3).persistent);
}

/// What must hold of any plan, whatever the knobs.
void check_fetch_plan(const ParamLayout& layout, const FetchOptions& options,
                      const FetchPlan& plan) {
  const int blocks = layout.block_count();
  const int positions = options.forward_only ? blocks : 2 * blocks;
  std::vector<int> live(layout.units().size(), -1);
  std::set<int> in_arena;
  for (int position = 0; position < positions; ++position) {
    for (int index : plan.issues[static_cast<std::size_t>(position)]) {
      const FetchPlan::Gather& gather = plan.gathers[static_cast<std::size_t>(index)];
      EXPECT_EQ(gather.issue, position);
      EXPECT_LE(gather.issue, gather.first_use);
      EXPECT_LE(gather.first_use, gather.release);
      EXPECT_EQ(live[static_cast<std::size_t>(gather.unit)], -1) << "gathered while live";
      live[static_cast<std::size_t>(gather.unit)] = index;
      const std::int64_t end = gather.offset + layout.unit(gather.unit).padded;
      EXPECT_LE(end, plan.arena_elements);
      EXPECT_LE(end, options.budget_elements);
      for (int other : in_arena) {
        const FetchPlan::Gather& neighbour = plan.gathers[static_cast<std::size_t>(other)];
        EXPECT_TRUE(end <= neighbour.offset ||
                    neighbour.offset + layout.unit(neighbour.unit).padded <= gather.offset)
            << "live gathers overlap in the arena";
      }
      in_arena.insert(index);
    }
    const int block = block_at(position, blocks);
    if (position < blocks || block >= options.backward_down_to) {
      for (int unit : layout.block_units(block)) {
        if (layout.unit(unit).persistent) continue;
        EXPECT_GE(live[static_cast<std::size_t>(unit)], 0) << "used but not gathered";
      }
    }
    for (int index : plan.releases[static_cast<std::size_t>(position)]) {
      live[static_cast<std::size_t>(plan.gathers[static_cast<std::size_t>(index)].unit)] = -1;
      in_arena.erase(index);
    }
  }
  EXPECT_TRUE(in_arena.empty()) << "every gather is released";
}

/// Elements that the hungriest block needs at once: whatever the knobs, a budget of that is enough.
std::int64_t largest_position(const ParamLayout& layout) {
  std::int64_t largest = 0;
  for (int block = 0; block < layout.block_count(); ++block) {
    std::int64_t elements = 0;
    for (int unit : layout.block_units(block))
      elements += layout.unit(unit).persistent ? 0 : layout.unit(unit).padded;
    largest = std::max(largest, elements);
  }
  return largest;
}

TEST(FetchPlan, HoldsItsPropertiesForAnyModelAndKnobs) {
  std::mt19937 random(2);
  int planned = 0;
  for (int trial = 0; trial < 500; ++trial) {
    LayoutOptions layout_options;
    layout_options.shards = 1 + static_cast<int>(random() % 4);
    layout_options.persistence = true;
    layout_options.param_persistence_threshold = random() % 2 ? 1024 : 0;
    const ParamLayout layout(random_model(random), layout_options);
    const std::int64_t knobs[] = {0, 1, 1024, 5000, 100000, 1000000000};
    FetchOptions options;
    options.prefetch_elements = knobs[random() % 6];
    options.max_live_elements = knobs[random() % 6];
    options.max_reuse_distance = knobs[random() % 6];
    options.forward_only = random() % 4 == 0;
    options.backward_down_to =
        static_cast<int>(random() % static_cast<unsigned>(layout.block_count()));
    if (random() % 2) {
      const std::int64_t beside = 512 * static_cast<std::int64_t>(random() % 8) - 1024;
      options.budget_elements = std::max<std::int64_t>(0, largest_position(layout) + beside);
    }
    try {
      const FetchPlan plan = plan_fetches(layout, options);
      check_fetch_plan(layout, options, plan);
      ++planned;
      EXPECT_LE(largest_position(layout), options.budget_elements);
    } catch (const OutOfMemory& error) {
      EXPECT_GT(largest_position(layout), options.budget_elements) << error.what();
    }
  }
  EXPECT_GT(planned, 250);
}

/// Four equal blocks of 10 * 1,024 elements.
ParamLayout uniform_layout(int blocks = 4) {
  Blocks model;
  for (int block = 0; block < blocks; ++block)
    model.push_back({spec(concat("w", block), 10 * 1024)});
  return ParamLayout(model, {.shards = 2});
}

constexpr std::int64_t kUnit = 10 * 1024;
constexpr std::int64_t kMany = 1'000'000'000;

TEST(FetchPlan, ZeroKnobsGatherEachUnitOnceForwardAndOnceBackward) {
  const ParamLayout layout = uniform_layout();
  const FetchPlan plan = plan_fetches(layout, {});
  EXPECT_EQ(plan.gathered_elements, 2 * layout.padded());
  EXPECT_EQ(plan.peak_live_elements, kUnit);
  EXPECT_EQ(plan.arena_elements, kUnit);
}

TEST(FetchPlan, PrefetchBucketSizeBoundsWhatIsGatheredAhead) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.max_live_elements = kMany;
  options.prefetch_elements = 1;  // one unit, by overshooting
  EXPECT_EQ(plan_fetches(layout, options).peak_live_elements, 2 * kUnit);
  EXPECT_EQ(plan_fetches(layout, options).gathers[1].issue, 0);
  options.prefetch_elements = kUnit + 1;
  EXPECT_EQ(plan_fetches(layout, options).peak_live_elements, 3 * kUnit);
  EXPECT_EQ(plan_fetches(layout, options).gathered_elements, 2 * layout.padded());
}

TEST(FetchPlan, MaxLiveParametersCapsPrefetchAndReuse) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.prefetch_elements = kMany;
  options.max_reuse_distance = kMany;
  options.max_live_elements = 2 * kUnit;
  const FetchPlan plan = plan_fetches(layout, options);
  EXPECT_EQ(plan.peak_live_elements, 2 * kUnit);
}

TEST(FetchPlan, MaxReuseDistanceKeepsWhatIsUsedAgainSoon) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.max_live_elements = kMany;
  options.max_reuse_distance = 1;  // only the last block, whose backward follows at once
  EXPECT_EQ(plan_fetches(layout, options).gathered_elements, 2 * layout.padded() - kUnit);
  options.max_reuse_distance =
      2 * kUnit + 1;  // and the one before it: the last block's two uses lie between
  EXPECT_EQ(plan_fetches(layout, options).gathered_elements, 2 * layout.padded() - 2 * kUnit);
  options.max_reuse_distance = kMany;
  EXPECT_EQ(plan_fetches(layout, options).gathered_elements, layout.padded());
}

TEST(FetchPlan, ABudgetClipsKnobsAndSaysSo) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.prefetch_elements = options.max_live_elements = options.max_reuse_distance = kMany;
  options.budget_elements = 2 * kUnit;
  const FetchPlan plan = plan_fetches(layout, options);
  EXPECT_LE(plan.arena_elements, 2 * kUnit);
  ASSERT_EQ(plan.clipped.size(), 2u);
  EXPECT_NE(plan.clipped[0].find("stage3_prefetch_bucket_size"), std::string::npos);
  EXPECT_NE(plan.clipped[1].find("stage3_max_reuse_distance"), std::string::npos);
  options.budget_elements = kUnit - 1;
  EXPECT_THROW(plan_fetches(layout, options), OutOfMemory);
}

TEST(FetchPlan, FrozenBlocksBelowTheFirstTrainableOneAreNotGatheredBackward) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.backward_down_to = 2;
  EXPECT_EQ(plan_fetches(layout, options).gathered_elements, 6 * kUnit);
}

TEST(FetchPlan, PlansAThousandBlocksOnAThousandRanksInFiftyMilliseconds) {
  Blocks model;
  for (int block = 0; block < 1000; ++block) {
    for (int i = 0; i < 12; ++i)
      model.emplace_back().push_back(spec(concat("b", block, ".", i), 100'000 + i));
  }
  std::vector<std::vector<ParameterSpec>> merged(1000);
  for (std::size_t i = 0; i < model.size(); ++i) merged[i / 12].push_back(model[i][0]);
  const std::int64_t begin = now_ns();
  const ParamLayout layout(
      merged, {.shards = 1024, .persistence = true, .param_persistence_threshold = 100'000});
  FetchOptions options;
  options.prefetch_elements = 50'000'000;
  options.max_live_elements = options.max_reuse_distance = kMany;
  const FetchPlan plan = plan_fetches(layout, options);
  const BucketPlan buckets = plan_buckets(layout, {});
  EXPECT_GT(plan.gathers.size(), 900u);
  EXPECT_GT(buckets.buckets.size(), 3u);
  RecordProperty("milliseconds", static_cast<int>((now_ns() - begin) / 1'000'000));
}

TEST(BucketPlan, EveryTrainableUnitTravelsOnceInOrderOfCompletion) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const ParamLayout layout(random_model(random), {.shards = 1 + static_cast<int>(random() % 4)});
    BucketOptions options;
    options.bucket_elements = 1 + static_cast<std::int64_t>(random() % 200000);
    options.buffers = 1 + static_cast<int>(random() % 2);
    const BucketPlan plan = plan_buckets(layout, options);
    std::vector<int> seen(layout.units().size());
    for (const BucketPlan::Bucket& bucket : plan.buckets) {
      std::int64_t offset = 0;
      for (const BucketPlan::Slot& slot : bucket.slots) {
        EXPECT_EQ(slot.offset, offset);
        offset += layout.unit(slot.unit).padded;
        ++seen[static_cast<std::size_t>(slot.unit)];
        if (bucket.buffer == BucketPlan::kOwnBuffer) {
          EXPECT_GT(layout.unit(slot.unit).blocks.size(), 1u);
        }
      }
      EXPECT_EQ(offset, bucket.elements);
      std::set<int> blocks;
      for (const BucketPlan::Slot& slot : bucket.slots)
        blocks.insert(layout.unit(slot.unit).blocks.front());
      EXPECT_TRUE(blocks.size() == 1 || bucket.elements <= plan.bucket_elements);
      if (bucket.buffer != BucketPlan::kOwnBuffer) {
        EXPECT_LE(bucket.elements, plan.buffer_elements[static_cast<std::size_t>(bucket.buffer)]);
      }
    }
    for (int unit = 0; unit < layout.unit_count(); ++unit) {
      EXPECT_EQ(seen[static_cast<std::size_t>(unit)], layout.unit(unit).frozen ? 0 : 1);
    }
  }
}

TEST(BucketPlan, UnitsOfOneBlockNeverLieInTwoSharedBuffers) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    LayoutOptions layout_options;
    layout_options.group_of = [&](const ParameterSpec& p) {
      return static_cast<int>(p.name.back()) % 2;
    };
    const ParamLayout layout(random_model(random), layout_options);
    const BucketPlan plan = plan_buckets(
        layout,
        {.bucket_elements = 1 + static_cast<std::int64_t>(random() % 100000), .buffers = 1});
    for (int block = 0; block < layout.block_count(); ++block) {
      std::set<int> shared;
      for (int unit : layout.block_units(block)) {
        const int bucket = plan.bucket_of[static_cast<std::size_t>(unit)];
        if (bucket < 0 ||
            plan.buckets[static_cast<std::size_t>(bucket)].buffer == BucketPlan::kOwnBuffer)
          continue;
        shared.insert(bucket);
      }
      EXPECT_LE(shared.size(), 1u);
    }
  }
}

TEST(BucketPlan, ABlockLargerThanTheBucketTravelsAlone) {
  const ParamLayout layout({{spec("small", 1000)}, {spec("large", 50000)}, {spec("other", 1000)}},
                           {});
  const BucketPlan plan = plan_buckets(layout, {.bucket_elements = 4096, .buffers = 2});
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[1].elements, layout.unit(1).padded);
}

}  // namespace
}  // namespace zero3d
