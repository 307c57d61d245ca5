// Training on meshes whose ranks share sequences: losses are those of one rank, whatever family,
// other degrees and ZeRO stage, and at a fixed mesh the bits are the same in every stage and tier.
#include <gtest/gtest.h>

#include "zero3d/tests/engine/sequence_run.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

TEST(SequenceParallel, EveryFamilyTrainsAsOneRank) {
  int at = 0;
  for (const ModelConfig& model : nano_families()) {
    const RunResult expected = train(model, {});
    for (const SequenceRun& mesh :
         {SequenceRun{.sp = 2}, SequenceRun{.sp = 4}, SequenceRun{.sp = 2, .dp = 2}}) {
      SequenceRun run = mesh;
      run.stage = ++at % 4;
      if (kSanitized && at % 4 != 0) continue;
      SCOPED_TRACE(concat(name_of(model), ", ", run.name()));
      EXPECT_TRUE(close(expected, train(model, run), kClose));
    }
  }
}

TEST(SequenceParallel, FewerKeyValueHeadsThanRanksAreShared) {
  ModelConfig model = nano_families()[4];  // with norms of heads
  for (const std::int64_t kv_heads : {1, 2}) {
    model.kv_heads = kv_heads;
    const RunResult expected = train(model, {});
    for (const SequenceRun& run : {SequenceRun{.sp = 4, .stage = 2}, SequenceRun{.sp = 8},
                                   SequenceRun{.sp = 4, .tp = 2, .stage = 1}}) {
      if (kSanitized && run.sp == 8) continue;
      SCOPED_TRACE(concat(kv_heads, " heads, ", run.name()));
      EXPECT_TRUE(close(expected, train(model, run), kClose));
    }
  }
}

/// Targets ignored where parts of two ranks meet, in whole parts, and in whole micro-batches.
TEST(SequenceParallel, IgnoredTargetsCountOnce) {
  const auto with_ignored = [](const SequenceRun& run) {
    RunOptions options = options_of(nano_families()[0], run);
    options.batch = [run](const Moment& moment) {
      TokenBatch batch = nano_batch(moment, run.dp, run.accumulation(), kRows, run.sequence);
      const int micro = moment.micro_batch * run.dp + moment.rank;  // of the step
      const std::int64_t half = run.sequence / 2;
      for (std::int64_t i = 0; i < run.sequence; ++i) {
        const bool ignored = micro == 0   ? i == half - 1 || i == half
                             : micro == 1 ? i >= half
                             : micro == 2 ? i < half
                                          : true;
        for (std::int64_t row = 0; ignored && row < kRows; ++row)
          batch.targets[static_cast<std::size_t>(row * run.sequence + i)] = -100;
      }
      return batch;
    };
    return run_engine(json_of(run), options);
  };
  const RunResult expected = with_ignored({.micro_batches = 4});
  EXPECT_EQ(expected.steps[0].ignored_micro_batches, 1);
  for (const int dp : {1, 2}) {
    const RunResult found = with_ignored({.sp = 2, .dp = dp, .stage = 2, .micro_batches = 4});
    EXPECT_TRUE(close(expected, found, kClose));
    EXPECT_EQ(found.steps[0].ignored_micro_batches, 1);
    EXPECT_EQ(found.steps[0].tokens, expected.steps[0].tokens);
  }
}

TEST(SequenceParallel, GoesWithTensorParallelRanksAndPipelines) {
  int at = 0;
  for (const std::size_t family : {0, 2, 4}) {
    const ModelConfig model = nano_families()[family];
    const RunResult expected = train(model, {});
    for (const SequenceRun& mesh :
         {SequenceRun{.sp = 2, .tp = 2}, SequenceRun{.sp = 2, .pp = 2},
          SequenceRun{.sp = 2, .dp = 2, .stage = 3}, SequenceRun{.sp = 2, .tp = 2, .pp = 2},
          SequenceRun{.sp = 2, .dp = 2, .stage = 3, .zero = R"("mics_shard_size": 2)"}}) {
      SequenceRun run = mesh;
      if (run.stage == 0) run.stage = at++ % 4;
      if (kSanitized && at % 3 != 0) continue;
      SCOPED_TRACE(concat(name_of(model), ", ", run.name()));
      EXPECT_TRUE(close(expected, train(model, run), kClose));
    }
  }
}

/// Parts are of whole pairs of tokens then: 6 and 8 of 14.
TEST(SequenceParallel, RowsAreSplitAgainOverTensorParallelRanks) {
  for (const std::size_t family : {0, 4}) {
    const ModelConfig model = nano_families()[family];
    const RunResult expected = train(model, {.sequence = 14});
    EXPECT_TRUE(close(expected,
                      train(model, {.sp = 2, .tp = 2, .stage = 1, .sequence = 14, .top = kSplit}),
                      kClose));
  }
}

TEST(SequenceParallel, StagesAndTiersAreIdenticalAtAFixedMesh) {
  const ModelConfig model = nano_families()[0];
  const SequenceRun base{.sp = 2, .dp = 2, .steps = 3};
  const RunResult expected = train(model, base);
  const TemporaryFolder swap;
  const std::string cpu = R"("offload_optimizer": {"device": "cpu"})";
  for (const auto& [stage, zero] : std::vector<std::pair<int, std::string>>{
           {1, ""},
           {2, ""},
           {3, ""},
           {1, cpu},
           {3, cpu + R"(, "offload_param": {"device": "cpu"})"},
           {3, concat(R"("offload_optimizer": {"device": "nvme", "nvme_path": ")",
                      swap.file("swap"), "\"}")},
           {2, R"("overlap_comm": false, "reduce_bucket_size": 100)"},
           {3, R"("zero_hpz_partition_size": 2)"}}) {
    if (kSanitized && stage != 3) continue;
    SequenceRun run = base;
    run.stage = stage;
    run.zero = zero;
    EXPECT_TRUE(same_bits(expected, train(model, run))) << run.name();
  }
  for (const char* top :
       {R"("pipeline": {"activation_checkpoint_interval": 1})",
        R"("activation_checkpointing": {"number_checkpoints": 2, "cpu_checkpointing": true})"}) {
    SequenceRun run = base;
    run.stage = 2;
    run.top = top;
    EXPECT_TRUE(same_bits(expected, train(model, run))) << run.name();
  }
}

TEST(SequenceParallel, OptimizersOfWholeTensorsAndReducedPrecisionsWork) {
  const ModelConfig model = nano_families()[1];
  for (const char* optimizer : {R"({"type": "Lamb", "params": {"lr": 1e-3, "weight_decay": 0.1}})",
                                R"({"type": "Muon", "params": {"lr": 1e-3, "momentum": 0.9}})"}) {
    const RunResult expected = train(model, {.stage = 1, .optimizer = optimizer});
    EXPECT_TRUE(close(expected,
                      train(model, {.sp = 2, .dp = 2, .stage = 2, .optimizer = optimizer}), kClose))
        << optimizer;
  }
  for (const char* top :
       {R"("bf16": {"enabled": true})", R"("fp16": {"enabled": true, "initial_scale_power": 8})"}) {
    EXPECT_TRUE(
        close(train(model, {.top = top}), train(model, {.sp = 4, .stage = 2, .top = top}), 2e-2))
        << top;
  }
}

TEST(SequenceParallel, LayersMayBeInTiles) {
  const ModelConfig model = nano_families()[0];
  const auto tiled = [&](const SequenceRun& run) {
    RunOptions options = options_of(model, run);
    options.make_module = [&model](int) { return build_model(model, {.linear = 2, .head = 3}); };
    return run_engine(json_of(run), options);
  };
  EXPECT_TRUE(close(tiled({.stage = 3}), tiled({.sp = 4, .stage = 3}), kClose));
}

/// With dropout, as the numerics contract has it.
TEST(SequenceParallel, StaysWithOneRankForFiftySteps) {
  if (kSanitized) GTEST_SKIP() << "numbers alone";
  const ModelConfig model = nano_families()[0];
  const SequenceRun one{.steps = 50};
  SequenceRun cut = one;
  cut.sp = cut.dp = 2;
  cut.stage = 3;
  EXPECT_TRUE(close(train(model, one), train(model, cut), kClose));
}

}  // namespace
}  // namespace zero3d::test
