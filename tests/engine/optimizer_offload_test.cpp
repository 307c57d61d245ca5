// The optimizer's state and gradients off the device: no result changes by a bit, whatever the
// optimizer, the stage, the precision, and the place.
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "offload_trial.h"

namespace zero3d::test {
namespace {

class OffloadedOptimizer : public ::testing::TestWithParam<const char*> {};

TEST_P(OffloadedOptimizer, ChangesNoBit) {
  const TemporaryFolder folder;
  for (const int stage : {1, 2, 3}) {
    if (kSanitized && stage == 2) continue;
    for (const char* precision : {"", kBf16}) {
      if (kSanitized && (*precision == '\0') != (stage == 1)) continue;
      const Trial run{GetParam(), stage, 2, 1 + stage % 2, precision};
      const RunResult expected = resident(run);
      for (const double ratio : {1.0, 0.5}) {
        if (ratio < 1 && stage < 3) continue;
        const RunResult moved = run_engine(settings_for(run, to_cpu(ratio)), options_for(run));
        EXPECT_TRUE(same_bits(expected, moved)) << json_of(run) << " ratio " << ratio;
        expect_planned(moved, json_of(run));
      }
      const bool pipelined = stage != 2;
      const RunResult driven =
          run_engine(settings_for(run, to_drive(folder, pipelined)), options_for(run));
      EXPECT_TRUE(same_bits(expected, driven)) << json_of(run) << " nvme";
      expect_planned(driven, json_of(run));
    }
  }
}

const std::vector<const char*> kOptimizers = {"AdamW", "Lamb", "Muon",   "Adagrad",
                                              "Lion",  "SGD",  "RMSprop"};
// One of each way to update is enough for a sanitizer.
INSTANTIATE_TEST_SUITE_P(All, OffloadedOptimizer,
                         ::testing::ValuesIn(kOptimizers.begin(),
                                             kOptimizers.begin() + (kSanitized ? 3 : 7)));

TEST(OptimizerOffload, HoldsWithEveryWayToReduce) {
  const TemporaryFolder folder;
  const char* const kBf16Sums =
      R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"}, )";
  const char* const kFp16 = R"("fp16": {"enabled": true, "initial_scale_power": 8}, )";
  // For a sanitizer those that move gradients or parameters another way.
  const Trial runs[] = {{.stage = 2, .accumulation = 3, .precision = kBf16Sums},
                        {.stage = 3, .accumulation = 2, .zero = R"("reduce_scatter": false, )"},
                        {.stage = 3, .ranks = 4, .zero = R"("mics_shard_size": 2, )"},
                        {.stage = 3, .ranks = 4, .zero = R"("zero_hpz_partition_size": 2, )"},
                        {.stage = 3, .zero = R"("overlap_comm": false, )"},
                        {.stage = 3, .accumulation = 3, .precision = kFp16},
                        {.stage = 1, .accumulation = 3, .precision = kBf16},
                        {.stage = 2, .zero = R"("reduce_bucket_size": 1, )"},
                        {.stage = 2, .ranks = 1},
                        {.stage = 3, .ranks = 1, .accumulation = 2},
                        {.stage = 3, .ranks = 7, .tile = 1},
                        {.stage = 3, .precision = kBf16, .tile = 1'000'000'000}};
  for (const Trial& run : std::span(runs).first(kSanitized ? 5 : std::size(runs))) {
    const RunResult expected = resident(run);
    EXPECT_TRUE(same_bits(expected, run_engine(settings_for(run, to_cpu()), options_for(run))))
        << json_of(run);
    EXPECT_TRUE(same_bits(expected,
                          run_engine(settings_for(run, to_drive(folder, true)), options_for(run))))
        << json_of(run) << " nvme";
  }
}

/// One rank gathers nothing that an export would wait for.
TEST(OptimizerOffload, AnExportRightAfterAStepSeesIt) {
  for (const int stage : {1, 2, 3}) {
    const Trial run{.stage = stage, .ranks = 1};
    RunOptions options = options_for(run);
    options.jitter_seed = 5;
    std::vector<std::byte> exported;
    options.after_step = [&](Engine& engine, int, int) {
      exported.clear();
      engine.model().for_each_parameter([&](const ParameterSpec&, const ConstView& value) {
        exported.insert(exported.end(), value.data(), value.data() + value.bytes());
      });
    };
    run_engine(settings_for(run, {}), options);
    const std::vector<std::byte> expected = exported;
    run_engine(settings_for(run, to_cpu()), options);
    EXPECT_TRUE(exported == expected) << json_of(run);
  }
}

/// Where no step can be skipped units are updated as soon as their gradients are there.
TEST(OptimizerOffload, EarlyUpdatesChangeNoBit) {
  const TemporaryFolder folder;
  const char* const kUnchecked = R"("bf16": {"enabled": true, "check_grad_overflow": false}, )";
  for (const int stage : {1, 2}) {
    for (const char* optimizer : {"AdamW", "Lamb", "Muon"}) {
      if (kSanitized && std::string(optimizer) != "AdamW") continue;
      const Trial run{.optimizer = optimizer,
                      .stage = stage,
                      .accumulation = stage,
                      .precision = kUnchecked,
                      .zero = R"("reduce_bucket_size": 500, )",
                      .clipping = 0};
      const RunResult expected = resident(run);
      RunOptions options = options_for(run);
      options.jitter_seed = 7;
      EXPECT_TRUE(same_bits(expected, run_engine(settings_for(run, to_cpu()), options)))
          << json_of(run);
      EXPECT_TRUE(
          same_bits(expected, run_engine(settings_for(run, to_drive(folder, stage == 1)), options)))
          << json_of(run);
    }
  }
}

/// Every place of the optimizer's state with every place of the parameters.
TEST(OptimizerOffload, GoesWithOffloadedParameters) {
  const TemporaryFolder folder;
  int turn = 0;
  for (const char* optimizer : {"AdamW", "Lamb", "Muon"}) {
    for (const OffloadDevice parameters : {OffloadDevice::cpu, OffloadDevice::nvme}) {
      for (int state = 0; state < 4; ++state) {
        const Trial run{.optimizer = optimizer,
                        .stage = 3,
                        .ranks = 1 + turn % 2,
                        .accumulation = 1 + turn / 2 % 2,
                        .precision = turn % 3 == 0 ? "" : kBf16,
                        .zero = R"("stage3_param_persistence_threshold": 100, )",
                        .tile = turn % 5 == 0 ? 1000 : 2048};
        ++turn;
        if (kSanitized && turn % 3 != 0) continue;
        OffloadSettings offload = state == 0   ? OffloadSettings{}
                                  : state == 1 ? to_cpu()
                                  : state == 2 ? to_cpu(0.5)
                                               : to_drive(folder, true);
        offload.parameters.device = parameters;
        offload.parameters.paths = {folder.file("a")};
        offload.parameters.max_in_cpu = 0;
        offload.parameters.buffer_elements = 4096;
        RunOptions options = options_for(run);
        options.jitter_seed = static_cast<std::uint64_t>(turn % 4);
        const RunResult moved = run_engine(settings_for(run, offload), options);
        EXPECT_TRUE(same_bits(resident(run), moved)) << json_of(run) << " state " << state;
        expect_planned(moved, json_of(run));
      }
    }
  }
}

/// Everything on a drive: the model starts, trains, is evaluated, generates and is saved within
/// budgets that together are smaller than its state.
TEST(OptimizerOffload, IsOrderedWhateverTheStreamsDo) {
  const TemporaryFolder folder;
  for (const char* optimizer : {"AdamW", "Lamb", "Muon"}) {
    if (kSanitized && std::string(optimizer) == "AdamW") continue;  // as is everywhere else
    const Trial run{.optimizer = optimizer, .stage = 3, .accumulation = 2};
    const RunResult expected = resident(run);
    for (std::uint64_t seed = kSanitized ? 3 : 1; seed <= 3; ++seed) {
      RunOptions options = options_for(run);
      options.jitter_seed = seed;
      const OffloadSettings offload = seed == 3 ? to_drive(folder, true) : to_cpu(1.5 - 0.5 * seed);
      EXPECT_TRUE(same_bits(expected, run_engine(settings_for(run, offload), options)))
          << optimizer << " " << seed;
    }
  }
}

/// What a step moves: gradients out, parameters back, and the state's tiles from the drive and to
/// it.
TEST(OptimizerOffload, HasNoEffectAtStage0) {
  const Trial run{.stage = 0};
  const RunResult moved = run_engine(settings_for(run, to_cpu()), options_for(run));
  EXPECT_TRUE(same_bits(resident(run), moved));
  EXPECT_GT(moved.memory[0].categories[Category::optimizer_states].peak, 0);
}

TEST(OptimizerOffload, KeepsSkippedStepsAndMasterEdits) {
  const Trial run{.stage = 3,
                  .precision = R"("fp16": {"enabled": true, "initial_scale_power": 20}, )"};
  RunOptions options = options_for(run);
  options.steps = 12;
  options.after = [](Engine& engine, int) {
    const std::string name = engine.model().plan().layout.parameters()[0].spec.name;
    engine.model().with_parameters(
        {name}, 0, [](const ParameterSpec&, View values) { values.as<f16>()[0] = f16{}; });
  };
  const RunResult expected = run_engine(settings_for(run, {}), options);
  EXPECT_TRUE(expected.steps[0].skipped);
  EXPECT_FALSE(expected.steps.back().skipped);
  EXPECT_TRUE(same_bits(expected, run_engine(settings_for(run, to_cpu()), options)));
  const TemporaryFolder folder;
  EXPECT_TRUE(same_bits(expected, run_engine(settings_for(run, to_drive(folder, true)), options)));
}

}  // namespace
}  // namespace zero3d::test
