// Properties of the pure plans: layouts, fetches and buckets, over random models, rank counts and
// knobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/schedule.h"
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
      std::int64_t covered = 0, declared = 0;
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
        declared += layout.parameter(index).spec.shape.numel();
        EXPECT_EQ(layout.parameter(index).offset % ParamLayout::kAlignment, 0);
        EXPECT_EQ(layout.parameter(index).spec.frozen, entry.frozen);
        EXPECT_EQ(layout.parameter(index).persistent, entry.persistent);
      }
      std::int64_t gaps = 0;
      for (const auto& [begin, end] : layout.gaps(unit)) gaps += end - begin;
      EXPECT_EQ(covered + gaps, entry.padded);
      EXPECT_EQ(covered, declared);
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

TEST(ParamLayout, OneNameDeclaredInTwoWaysIsRefused) {
  const auto refusal = [](const Blocks& blocks) -> std::string {
    try {
      const ParamLayout layout(blocks, {});
      return "none";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const auto changed = [](const auto& change) {
    ParameterSpec result = spec("w", 6);
    change(result);
    return result;
  };
  const std::pair<ParameterSpec, const char*> others[] = {
      {spec("w", 5), "shapes, [6] and [5]"},
      {spec("w", 6, true), "frozen, false and true"},
      {changed([](ParameterSpec& s) { s.decay = false; }), "decay, true and false"},
      {changed([](ParameterSpec& s) { s.split.dim = 0; }), "splits, none and of dimension 0"}};
  for (const auto& [other, part] : others) {
    const std::string message = refusal({{spec("w", 6)}, {spec("v", 1)}, {other}});
    EXPECT_NE(message.find(concat("blocks 0 and 2 declare w with different ", part)),
              std::string::npos)
        << message;
  }
  const ParameterSpec adds = changed([](ParameterSpec& s) { s.adds_gradient = true; });
  EXPECT_EQ(refusal({{spec("w", 6)}, {adds}}), "none") << "each block writes in its own way";
  for (const Blocks& twice : {Blocks{{spec("w", 6), spec("v", 1), spec("w", 6)}},
                              Blocks{{spec("w", 6)}, {spec("w", 6), spec("w", 6)}}}) {
    const std::string message = refusal(twice);
    EXPECT_NE(message.find("declares the parameter w twice"), std::string::npos) << message;
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

/// What must hold of any plan, whatever the list and the knobs.
void check_fetch_plan(const ParamLayout& layout, const FetchOptions& options,
                      const FetchPlan& plan) {
  std::vector<int> live(layout.units().size(), -1);
  std::set<int> in_arena;
  for (std::size_t position = 0; position < plan.ops.size(); ++position) {
    const Op& op = plan.ops[position];
    for (int index : plan.issues[position]) {
      const FetchPlan::Gather& gather = plan.gathers[static_cast<std::size_t>(index)];
      EXPECT_TRUE(uses_parameters(op.kind));
      EXPECT_EQ(gather.issue, static_cast<int>(position));
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
    if (uses_parameters(op.kind)) {
      for (int unit : layout.block_units(op.block)) {
        if (layout.unit(unit).persistent) continue;
        EXPECT_GE(live[static_cast<std::size_t>(unit)], 0) << "used but not gathered";
      }
    }
    for (int index : plan.releases[position]) {
      live[static_cast<std::size_t>(plan.gathers[static_cast<std::size_t>(index)].unit)] = -1;
      in_arena.erase(index);
    }
  }
  EXPECT_TRUE(in_arena.empty()) << "every gather is released";
}

/// A schedule drawn at random: at every point one of the operations that may come next.
std::vector<Op> random_step(std::mt19937& random, const StageBlocks& stage, int micro_batches) {
  struct Progress {
    int forward = -1;  // -1: not loaded
    bool gradient = false;
    int inputs = 0, weights = 0;
  };
  std::vector<Progress> all(static_cast<std::size_t>(micro_batches));
  for (Progress& p : all) p.inputs = p.weights = stage.blocks - 1;
  std::vector<Op> ops;
  while (true) {
    std::vector<Op> next;
    for (int m = 0; m < micro_batches; ++m) {
      const Progress& p = all[static_cast<std::size_t>(m)];
      const Progress* before = m > 0 ? &all[static_cast<std::size_t>(m - 1)] : nullptr;
      if (p.forward < 0) next.push_back({.kind = OpKind::load_batch, .micro_batch = m});
      if (p.forward >= 0 && p.forward < stage.blocks) next.push_back(forward_of(p.forward, m));
      if (p.forward < stage.blocks) continue;
      if (!p.gradient && (!before || before->gradient))
        next.push_back({.kind = OpKind::loss_gradient, .micro_batch = m});
      if (p.gradient && p.inputs >= stage.backward_down_to &&
          (!before || before->inputs < p.inputs)) {
        next.push_back({.kind = OpKind::backward_inputs, .block = p.inputs, .micro_batch = m});
        if (p.inputs == p.weights && (!before || before->weights < p.weights))
          next.push_back(backward_of(p.inputs, m));
      }
      if (p.weights > p.inputs && (!before || before->weights < p.weights))
        next.push_back({.kind = OpKind::backward_weights, .block = p.weights, .micro_batch = m});
    }
    if (next.empty()) return ops;
    const Op op = next[random() % next.size()];
    Progress& p = all[static_cast<std::size_t>(op.micro_batch)];
    if (op.kind == OpKind::load_batch || op.kind == OpKind::forward) ++p.forward;
    if (op.kind == OpKind::loss_gradient) p.gradient = true;
    if (begins_gradients(op.kind)) --p.inputs;
    if (ends_gradients(op.kind)) --p.weights;
    ops.push_back(op);
  }
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
    StageBlocks stage{layout.block_count(), 0};
    stage.backward_down_to = static_cast<int>(random() % static_cast<unsigned>(stage.blocks));
    const unsigned kind = random() % 4;
    const std::vector<Op> ops = kind == 0   ? plan_evaluation(stage)
                                : kind == 1 ? random_step(random, stage, 3)
                                            : plan_step(stage, 1);
    if (random() % 2) {
      const std::int64_t beside = 512 * static_cast<std::int64_t>(random() % 8) - 1024;
      options.budget_elements = std::max<std::int64_t>(0, largest_position(layout) + beside);
    }
    try {
      const FetchPlan plan = plan_fetches(layout, ops, options);
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

/// For one micro-batch in the plain order.
FetchPlan plan_of(const ParamLayout& layout, const FetchOptions& options,
                  int backward_down_to = 0) {
  return plan_fetches(layout, plan_step({layout.block_count(), backward_down_to}, 1), options);
}

TEST(FetchPlan, ZeroKnobsGatherEachUnitOnceForwardAndOnceBackward) {
  const ParamLayout layout = uniform_layout();
  const FetchPlan plan = plan_of(layout, {});
  EXPECT_EQ(plan.gathered_elements, 2 * layout.padded());
  EXPECT_EQ(plan.peak_live_elements, kUnit);
  EXPECT_EQ(plan.arena_elements, kUnit);
}

TEST(FetchPlan, PrefetchBucketSizeBoundsWhatIsGatheredAhead) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.max_live_elements = kMany;
  options.prefetch_elements = 1;  // one unit, by overshooting
  EXPECT_EQ(plan_of(layout, options).peak_live_elements, 2 * kUnit);
  EXPECT_EQ(plan_of(layout, options).gathers[1].issue, 1) << "with the first forward";
  options.prefetch_elements = kUnit + 1;
  EXPECT_EQ(plan_of(layout, options).peak_live_elements, 3 * kUnit);
  EXPECT_EQ(plan_of(layout, options).gathered_elements, 2 * layout.padded());
}

TEST(FetchPlan, MaxLiveParametersCapsPrefetchAndReuse) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.prefetch_elements = kMany;
  options.max_reuse_distance = kMany;
  options.max_live_elements = 2 * kUnit;
  const FetchPlan plan = plan_of(layout, options);
  EXPECT_EQ(plan.peak_live_elements, 2 * kUnit);
}

TEST(FetchPlan, MaxReuseDistanceKeepsWhatIsUsedAgainSoon) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.max_live_elements = kMany;
  options.max_reuse_distance = 1;  // only the last block, whose backward follows at once
  EXPECT_EQ(plan_of(layout, options).gathered_elements, 2 * layout.padded() - kUnit);
  options.max_reuse_distance =
      2 * kUnit + 1;  // and the one before it: the last block's two uses lie between
  EXPECT_EQ(plan_of(layout, options).gathered_elements, 2 * layout.padded() - 2 * kUnit);
  options.max_reuse_distance = kMany;
  EXPECT_EQ(plan_of(layout, options).gathered_elements, layout.padded());
}

TEST(FetchPlan, ABudgetClipsKnobsAndSaysSo) {
  const ParamLayout layout = uniform_layout();
  FetchOptions options;
  options.prefetch_elements = options.max_live_elements = options.max_reuse_distance = kMany;
  options.budget_elements = 2 * kUnit;
  const FetchPlan plan = plan_of(layout, options);
  EXPECT_LE(plan.arena_elements, 2 * kUnit);
  ASSERT_EQ(plan.clipped.size(), 2u);
  EXPECT_NE(plan.clipped[0].find("prefetch bucket"), std::string::npos);
  EXPECT_NE(plan.clipped[1].find("reuse distance"), std::string::npos);
  options.budget_elements = kUnit - 1;
  EXPECT_THROW(plan_of(layout, options), OutOfMemory);
}

TEST(FetchPlan, FrozenBlocksBelowTheFirstTrainableOneAreNotGatheredBackward) {
  const ParamLayout layout = uniform_layout();
  EXPECT_EQ(plan_of(layout, {}, 2).gathered_elements, 6 * kUnit);
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
  const FetchPlan plan = plan_of(layout, options);
  const BucketPlan buckets = plan_buckets(layout, plan.ops, {});
  EXPECT_GT(plan.gathers.size(), 900u);
  EXPECT_GT(buckets.buckets.size(), 3u);
  RecordProperty("milliseconds", static_cast<int>((now_ns() - begin) / 1'000'000));
}

/// How many times longer `plan` takes for a list of eight times as many micro-batches.
double growth(const std::function<void(const std::vector<Op>&)>& plan) {
  std::int64_t shortest[2] = {INT64_MAX, INT64_MAX};
  for (int trial = 0; trial < 5; ++trial) {
    for (const int longer : {0, 1}) {
      const std::vector<Op> ops = plan_step({8, 0}, longer ? 1600 : 200);
      const std::int64_t begin = now_ns();
      plan(ops);
      shortest[longer] = std::min(shortest[longer], now_ns() - begin);
    }
  }
  return static_cast<double>(shortest[1]) / static_cast<double>(shortest[0]);
}

TEST(Plans, TakeTimeInProportionToTheList) {
  const ParamLayout layout = uniform_layout(8);
  const FetchOptions options{
      .prefetch_elements = kMany, .max_live_elements = kMany, .max_reuse_distance = kMany};
  EXPECT_LT(growth([&](const std::vector<Op>& ops) { plan_fetches(layout, ops, options); }), 30)
      << "64 when it is quadratic";
  EXPECT_LT(growth([&](const std::vector<Op>& ops) { plan_buckets(layout, ops, {}); }), 30);
}

TEST(BucketPlan, EveryTrainableUnitTravelsOnceInOrderOfCompletion) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const ParamLayout layout(random_model(random), {.shards = 1 + static_cast<int>(random() % 4)});
    BucketOptions options;
    options.bucket_elements = 1 + static_cast<std::int64_t>(random() % 200000);
    options.buffers = 1 + static_cast<int>(random() % 2);
    const BucketPlan plan = plan_buckets(layout, plan_step(stage_of(layout), 1), options);
    std::vector<int> seen(layout.units().size());
    for (const BucketPlan::Bucket& bucket : plan.buckets) {
      std::int64_t offset = 0;
      for (const BucketPlan::Slot& slot : bucket.slots) {
        EXPECT_EQ(slot.offset, offset);
        offset += layout.unit(slot.unit).padded;
        ++seen[static_cast<std::size_t>(slot.unit)];
        EXPECT_TRUE(bucket.slots.size() == 1 || layout.unit(slot.unit).blocks.size() == 1)
            << "a tied unit travels alone";
      }
      EXPECT_EQ(offset, bucket.elements);
      std::set<int> blocks;
      for (const BucketPlan::Slot& slot : bucket.slots)
        blocks.insert(layout.unit(slot.unit).blocks.front());
      EXPECT_TRUE(blocks.size() == 1 || bucket.elements <= plan.bucket_elements);
      EXPECT_EQ(bucket.buffers.size(), 1u) << "every micro-batch uses the same";
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
        layout, plan_step(stage_of(layout), 1),
        {.bucket_elements = 1 + static_cast<std::int64_t>(random() % 100000), .buffers = 1});
    for (int block = 0; block < layout.block_count(); ++block) {
      std::set<int> shared;
      for (int unit : layout.block_units(block)) {
        const int bucket = plan.bucket_of[static_cast<std::size_t>(unit)];
        if (bucket < 0 || layout.unit(unit).blocks.size() > 1) continue;
        shared.insert(bucket);
      }
      EXPECT_LE(shared.size(), 1u);
    }
  }
}

TEST(BucketPlan, ABlockLargerThanTheBucketTravelsAlone) {
  const ParamLayout layout({{spec("small", 1000)}, {spec("large", 50000)}, {spec("other", 1000)}},
                           {});
  const BucketPlan plan =
      plan_buckets(layout, plan_step({3, 0}, 1), {.bucket_elements = 4096, .buffers = 2});
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[1].elements, layout.unit(1).padded);
}

/// Walks a list as the reducer does: buckets open and close; none that are open share a buffer.
void check_buffers(const ParamLayout& layout, const std::vector<Op>& ops, const BucketPlan& plan) {
  std::map<int, std::pair<int, int>> holder;           // buffer -> bucket, micro-batch
  std::map<std::pair<int, int>, std::set<int>> ready;  // bucket, micro-batch -> units
  for (const Op& op : ops) {
    if (!is_backward(op.kind)) continue;
    for (int unit : layout.block_units(op.block)) {
      const int bucket = plan.bucket_of[static_cast<std::size_t>(unit)];
      if (bucket < 0 || (!ends_gradients(op.kind) && opens_in_weights(layout, unit))) continue;
      const BucketPlan::Bucket& entry = plan.buckets[static_cast<std::size_t>(bucket)];
      const int buffer =
          entry.buffers[static_cast<std::size_t>(op.micro_batch) % entry.buffers.size()];
      EXPECT_LE(entry.elements, plan.buffer_elements[static_cast<std::size_t>(buffer)]);
      const std::pair<int, int> mine{bucket, op.micro_batch};
      EXPECT_EQ(holder.try_emplace(buffer, mine).first->second, mine) << "buffer " << buffer;
    }
    if (!ends_gradients(op.kind)) continue;
    for (int unit : layout.block_units(op.block)) {
      const int bucket = plan.bucket_of[static_cast<std::size_t>(unit)];
      if (bucket < 0 || layout.unit(unit).blocks.front() != op.block) continue;
      const BucketPlan::Bucket& entry = plan.buckets[static_cast<std::size_t>(bucket)];
      auto& done = ready[{bucket, op.micro_batch}];
      done.insert(unit);
      if (done.size() == entry.slots.size())
        holder.erase(
            entry.buffers[static_cast<std::size_t>(op.micro_batch) % entry.buffers.size()]);
    }
  }
  EXPECT_TRUE(holder.empty()) << "every bucket is passed on";
}

TEST(BucketPlan, BucketsOpenAtOnceNeverShareABufferInAnySchedule) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    Blocks model = random_model(random);
    for (auto& block : model) {
      for (ParameterSpec& p : block) p.gradient_in_weights = random() % 2 == 0;
    }
    const ParamLayout layout(model, {});
    const StageBlocks stage = stage_of(layout);
    BucketOptions options;
    options.bucket_elements = 1 + static_cast<std::int64_t>(random() % 100000);
    options.buffers = 1 + static_cast<int>(random() % 2);
    const int micro_batches = 1 + static_cast<int>(random() % 4);
    const std::vector<Op> ops = random_step(random, stage, micro_batches);
    check_buffers(layout, ops, plan_buckets(layout, ops, options));

    const std::vector<Op> plain = plan_step(stage, micro_batches);
    const BucketPlan repeated = plan_buckets(layout, plain, options);
    check_buffers(layout, plain, repeated);
    EXPECT_EQ(repeated.buffer_elements,
              plan_buckets(layout, plan_step(stage, 1), options).buffer_elements)
        << "repeating the plain order takes no more";
  }
}

TEST(BucketPlan, WhatOnlyBackwardWeightsWritesTakesNoBufferInASplit) {
  Blocks model{{spec("a", 1024)}, {spec("b", 1024)}, {spec("c", 1024)}};
  std::vector<Op> split = plan_step({3, 0}, 1);
  std::erase_if(split, [](const Op& op) { return op.kind == OpKind::backward; });
  for (const OpKind kind : {OpKind::backward_inputs, OpKind::backward_weights}) {
    for (int block = 2; block >= 0; --block) split.push_back({.kind = kind, .block = block});
  }
  require_step(split, {3, 0}, 1);
  const BucketOptions options{.bucket_elements = 1, .buffers = 1};
  EXPECT_EQ(plan_buckets(ParamLayout(model, {}), split, options).total_elements(), 3 * 1024);
  for (auto& block : model) block[0].gradient_in_weights = true;
  EXPECT_EQ(plan_buckets(ParamLayout(model, {}), split, options).total_elements(), 1024);
}

}  // namespace
}  // namespace zero3d
