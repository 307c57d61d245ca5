// The optimizer's state off the device: it lies where the settings say, budgets hold it there, what
// moves is counted, and a drive that fails ends every rank.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "offload_trial.h"
#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/tests/offload/faulty_port.h"

namespace zero3d::test {
namespace {

/// Every parameter's bytes right after a step, before anything else waits for it.
std::map<std::string, std::vector<std::byte>> exported(const Trial& run,
                                                       const OffloadSettings& offload) {
  std::map<std::string, std::vector<std::byte>> values;
  RunOptions options = options_for(run);
  options.body = [&](Engine& engine, Module&, int rank) {
    const TokenBatch batch = options.batch({rank, 0, 0});
    const MicroBatch view = batch.view();
    engine.train_batch({&view, 1});
    engine.model().for_each_parameter([&](const ParameterSpec& spec, const ConstView& whole) {
      if (rank == 0) values[spec.name].assign(whole.data(), whole.data() + whole.bytes());
    });
  };
  run_engine(settings_for(run, offload), options);
  return values;
}

TEST(OptimizerOffload, WhatIsExportedRightAfterAStepHasIt) {
  for (const int ranks : {1, 2}) {
    for (const int stage : {1, 2, 3}) {
      for (const char* precision : {"", kBf16}) {
        const Trial run{.stage = stage, .ranks = ranks, .precision = precision};
        const auto resident = exported(run, {});
        EXPECT_FALSE(resident.empty());
        for (const double ratio : {1.0, 0.5}) {
          if (ratio < 1 && stage < 3) continue;
          EXPECT_EQ(exported(run, to_cpu(ratio)), resident)
              << "stage " << stage << ", " << ranks << " ranks, " << precision;
        }
      }
    }
  }
}

TEST(OptimizerOffload, AModelLargerThanBothBudgetsTrains) {
  const TemporaryFolder folder;
  ModelConfig model = nano_gpt2(true);
  model.layers = 24;
  model.hidden_size = 64;
  model.head_dim = 16;
  model.intermediate_size = 256;
  const Trial run{.stage = 3,
                  .ranks = 1,
                  .precision = R"("bf16": {"enabled": true}, )",
                  .zero = R"("stage3_max_live_parameters": 0, "stage3_prefetch_bucket_size": 0,
                      "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
                      "reduce_bucket_size": 1, )",
                  .tile = 4096};
  OffloadSettings offload = to_drive(folder, true);
  offload.parameters.device = OffloadDevice::nvme;
  offload.parameters.paths = offload.optimizer.paths;
  offload.parameters.max_in_cpu = 0;
  offload.parameters.buffer_elements = 8192;
  TrainSettings settings = settings_for(run, offload);
  settings.recomputation.interval = 1;
  RunOptions options = nano_options(model, 1, 1);
  options.steps = 2;
  std::int64_t state = 0;
  const auto use = [&](Engine& engine, int) {
    state = 0;
    for (const LayoutParameter& p : engine.model().plan().layout.parameters())
      state += 18 * p.numel();
    const TokenBatch batch = nano_batch({}, 1, 1, 2);
    const MicroBatch view = batch.view();
    EXPECT_GT(engine.eval_batch({&view, 1}), 0);
    EXPECT_EQ(engine.next_logits(std::vector<std::int32_t>(8, 1)).size(), 61u);
    EXPECT_TRUE(engine.save_16bit_model(folder.file("saved")));
  };
  settings.sharding.gather_to_save = true;
  options.after = use;
  const RunResult free = run_engine(settings, options);
  options.budget_bytes = free.estimates[0].total();
  options.host_budget_bytes = free.estimates[0].total(kHostTiers) + (512 << 10);  // what tests read
  const RunResult held = run_engine(settings, options);
  EXPECT_TRUE(same_bits(free, held));
  EXPECT_GT(state, options.budget_bytes + options.host_budget_bytes);
}

TEST(OptimizerOffload, LeavesNoStateOnTheDevice) {
  const Trial run{.stage = 2, .precision = R"("bf16": {"enabled": true}, )"};
  const RunResult here = resident(run);
  const RunResult moved = run_engine(settings_for(run, to_cpu()), options_for(run));
  EXPECT_GT(here.memory[0].categories[Category::optimizer_states].peak, 0);
  EXPECT_EQ(moved.memory[0].categories[Category::optimizer_states].peak, 0);
  EXPECT_EQ(moved.memory[0].categories[Category::gradients].peak, 0);
  EXPECT_EQ(moved.pinned_memory[0].categories[Category::optimizer_states].peak,
            here.memory[0].categories[Category::optimizer_states].peak);
  const TemporaryFolder folder;
  const RunResult driven = run_engine(settings_for(run, to_drive(folder, true)), options_for(run));
  EXPECT_EQ(driven.memory[0].categories[Category::optimizer_states].peak, 0);
  EXPECT_LT(driven.pinned_memory[0].categories[Category::optimizer_states].peak,
            moved.pinned_memory[0].categories[Category::optimizer_states].peak * 3);
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("a"))) << "nothing is left behind";
}

TEST(OptimizerOffload, IsCounted) {
  const Trial run{.stage = 2, .ranks = 1};
  RunOptions options = options_for(run);
  std::int64_t elements = 0, states = 0;
  options.after = [&](Engine& engine, int) {
    elements = engine.model().plan().layout.padded();
    states = engine.model().plan().memory.drives[Category::optimizer_states];
  };
  const auto counted = [&](const OffloadSettings& offload) {
    return run_engine(settings_for(run, offload), options).steps.back().offload;
  };
  EXPECT_FALSE(counted({}).has_value());
  const std::optional<OffloadUse> cpu = counted(to_cpu());
  ASSERT_TRUE(cpu.has_value());
  EXPECT_EQ(cpu->read_bytes + cpu->written_bytes, 0);
  EXPECT_GE(cpu->copied_out_bytes, 4 * elements);
  EXPECT_LT(cpu->copied_out_bytes, 4 * elements + 4096) << "no more than losses and norms";
  EXPECT_GE(cpu->copied_in_bytes, 4 * elements);
  EXPECT_GE(cpu->parameter_wait_seconds, 0);
  const TemporaryFolder folder;
  const RunResult driven = run_engine(settings_for(run, to_drive(folder, false)), options);
  const std::optional<OffloadUse> drive = driven.steps.back().offload;
  ASSERT_TRUE(drive.has_value());
  EXPECT_GE(drive->read_bytes, states);
  EXPECT_GT(drive->state_wait_seconds, 0);
  std::int64_t written = 0;  // a step's last tiles may be counted with the next
  for (const StepResult& step : driven.steps) written += step.offload->written_bytes;
  EXPECT_GE(written, static_cast<std::int64_t>(driven.steps.size() - 1) * states);
}

TEST(OptimizerOffload, AFailingDriveEndsEveryRank) {
  for (const bool write : {true, false}) {
    const TemporaryFolder folder;
    OffloadSettings offload = to_drive(folder, true);
    const auto faults = std::make_shared<Faults>();
    faults->from = 30;
    (write ? faults->reads : faults->writes) = false;
    faults->code = write ? ENOSPC : EIO;
    offload.io.port = faulty(faults, offload.io.port);
    const Trial run{.stage = 3};
    RunOptions options = options_for(run);
    options.steps = 50;
    const std::int64_t begin = now_ns();
    const std::string message =
        message_of<Error>([&] { run_engine(settings_for(run, offload), options); });
    EXPECT_LT(now_ns() - begin, 5'000'000'000);
    EXPECT_NE(message.find(write ? ": cannot write " : ": cannot read "), std::string::npos)
        << message;
    EXPECT_NE(message.find(" at offset "), std::string::npos) << message;
  }
}

TEST(PlanOffload, KeepsTheFirstUnitsOnTheDevice) {
  std::vector<std::vector<ParameterSpec>> blocks(4);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ParameterSpec spec;
    spec.name = concat("p", i);
    spec.shape = Shape{1024};
    spec.frozen = i == 1;
    blocks[i].push_back(spec);
  }
  const ParamLayout layout(blocks, {});
  using Units = std::vector<bool>;
  EXPECT_EQ(plan_offload(layout, 1), (Units{true, false, true, true}));
  EXPECT_EQ(plan_offload(layout, 0.7), (Units{true, false, true, true})) << "the share is a floor";
  EXPECT_EQ(plan_offload(layout, 0.5), (Units{false, false, true, true}));
  EXPECT_EQ(plan_offload(layout, 0), (Units{false, false, false, false}));
}

}  // namespace
}  // namespace zero3d::test
