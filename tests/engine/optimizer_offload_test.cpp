// The optimizer's state and gradients off the device: no result changes by a bit, they lie where
// the settings say, and the plan of memory knows of all of it.
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/offload/io_port.h"
#include "zero3d/tests/offload/faulty_port.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

struct Trial {
  const char* optimizer = "AdamW";
  int stage = 2;
  int ranks = 2;
  int accumulation = 1;
  const char* precision = "";
  const char* zero = "";  ///< More keys of zero_optimization.
  std::int64_t tile = 2048;
  double clipping = 0.5;
};

std::string json_of(const Trial& run) {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": )", run.clipping,
                R"(, "gradient_accumulation_steps": )", run.accumulation, ", ", run.precision,
                R"("zero_allow_untested_optimizer": true, "optimizer": {"type": ")", run.optimizer,
                R"(", "params": {"lr": 0.01}}, "zero_optimization": {)", run.zero,
                R"("sub_group_size": )", run.tile, R"(, "stage": )", run.stage, "}}");
}

TrainSettings settings_for(const Trial& run, const OffloadSettings& offload) {
  TrainSettings settings = settings_of(json_of(run), run.ranks);
  settings.offload = offload;
  return settings;
}

RunOptions options_for(const Trial& run) {
  return nano_options(nano_gpt2(true), run.ranks, run.accumulation);
}

RunResult resident(const Trial& run) { return run_engine(settings_for(run, {}), options_for(run)); }

OffloadSettings to_cpu(double ratio = 1) {
  OffloadSettings offload;
  offload.optimizer.device = OffloadDevice::cpu;
  offload.optimizer.ratio = ratio;
  return offload;
}

OffloadSettings to_drive(const TemporaryFolder& folder, bool pipelined) {
  OffloadSettings offload;
  offload.optimizer.device = OffloadDevice::nvme;
  offload.optimizer.paths = {folder.file("a"), folder.file("b")};
  offload.optimizer.buffer_count = pipelined ? 3 : 1;
  offload.optimizer.pipeline_read = offload.optimizer.pipeline_write = pipelined;
  offload.optimizer.pin_memory = pipelined;
  offload.checksums = pipelined;
  offload.io.block_size = 8192;
  offload.io.port = has_ring() ? make_ring_port : make_thread_port;
  return offload;
}

/// Every tensor's plan is its counter's peak, on the device and in each tier of the host.
void expect_planned(const RunResult& result, const std::string& what) {
  for (std::size_t rank = 0; rank < result.memory.size(); ++rank) {
    const MemoryEstimate& plan = result.estimates[rank];
    EXPECT_EQ(result.memory[rank].peak, plan.total()) << what;
    for (const Category category :
         {Category::optimizer_states, Category::gradients, Category::gradient_buckets,
          Category::norm_workspace, Category::optimizer_workspace}) {
      EXPECT_EQ(result.memory[rank].categories[category].peak, plan[Tier::device][category])
          << what << " " << name_of(category);
      if (plan[Tier::pageable][category] > 0) continue;
      EXPECT_EQ(result.pinned_memory[rank].categories[category].peak, plan[Tier::pinned][category])
          << what << " pinned " << name_of(category);
    }
    EXPECT_LE(result.pinned_memory[rank].peak, plan.total({Tier::pinned})) << what;
  }
}

class OffloadedOptimizer : public ::testing::TestWithParam<const char*> {};

TEST_P(OffloadedOptimizer, ChangesNoBit) {
  const TemporaryFolder folder;
  for (const int stage : {1, 2, 3}) {
    if (kSanitized && stage == 2) continue;
    for (const char* precision : {"", R"("bf16": {"enabled": true}, )"}) {
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
  const char* const kBf16 = R"("bf16": {"enabled": true}, )";
  const char* const kBf16Sums =
      R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"}, )";
  const char* const kFp16 = R"("fp16": {"enabled": true, "initial_scale_power": 8}, )";
  const Trial runs[] = {{.stage = 2, .accumulation = 3, .precision = kBf16Sums},
                        {.stage = 3, .accumulation = 2, .zero = R"("reduce_scatter": false, )"},
                        {.stage = 3, .accumulation = 3, .precision = kFp16},
                        {.stage = 3, .ranks = 4, .zero = R"("mics_shard_size": 2, )"},
                        {.stage = 3, .ranks = 4, .zero = R"("zero_hpz_partition_size": 2, )"},
                        {.stage = 1, .accumulation = 3, .precision = kBf16},
                        {.stage = 2, .zero = R"("reduce_bucket_size": 1, )"},
                        {.stage = 2, .ranks = 1},
                        {.stage = 3, .zero = R"("overlap_comm": false, )"},
                        {.stage = 3, .ranks = 1, .accumulation = 2},
                        {.stage = 3, .ranks = 7, .tile = 1},
                        {.stage = 3, .precision = kBf16, .tile = 1'000'000'000}};
  for (const Trial& run : runs) {
    if (kSanitized && run.ranks > 2) continue;
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
  const char* const kBf16 = R"("bf16": {"enabled": true}, )";
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
        if (kSanitized && turn % 2 == 0) continue;
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

TEST(OptimizerOffload, IsOrderedWhateverTheStreamsDo) {
  const TemporaryFolder folder;
  for (const char* optimizer : {"AdamW", "Lamb", "Muon"}) {
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

/// What a step moves: gradients out, parameters back, and the state's tiles from the drive and to
/// it.
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
  const std::optional<OffloadUse> drive = counted(to_drive(folder, false));
  ASSERT_TRUE(drive.has_value());
  EXPECT_GE(drive->read_bytes, states);
  EXPECT_GE(drive->written_bytes, states);
  EXPECT_GT(drive->state_wait_seconds, 0);
}

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
