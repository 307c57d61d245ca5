// Training with inputs for recomputation kept in host memory: no bit changes, both tiers hold what
// the plan says, and what does not fit is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "schedules.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/recomputation.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

constexpr int kAccumulation = 2;
constexpr std::int64_t kLongest = 13;

struct Scenario {
  int stage = 0;
  bool bf16 = false;
  RecomputationSettings recomputation;
};

TrainSettings settings_for(const Scenario& run, bool on_host) {
  TrainSettings settings =
      settings_of(concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                         kAccumulation,
                         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
                "zero_optimization": {"stage": )",
                         run.stage, R"(, "stage3_param_persistence_threshold": 100},
                "bf16": {"enabled": )",
                         run.bf16 ? "true" : "false", "}}"),
                  2);
  settings.recomputation = run.recomputation;
  settings.offload.activations = on_host;
  return settings;
}

/// Three steps on batches that change their length, an evaluation after each.
RunOptions run_options() {
  ModelConfig model = nano_gpt2(true);
  model.layers = 4;
  model.residual_dropout = model.attention_dropout = model.embedding_dropout = 0.1;
  RunOptions options = nano_options(model, 2, kAccumulation);
  options.jitter_seed = 5;
  options.batch = [](const Moment& at) {
    return nano_batch(at, 2, kAccumulation, 2, kLongest);  // what plans are asked for
  };
  options.body = [](Engine& engine, Module&, int rank) {
    const std::int64_t lengths[] = {7, kLongest, 5};
    for (int step = 0; step < 3; ++step) {
      std::vector<TokenBatch> batches;
      std::vector<MicroBatch> views;
      for (int m = 0; m < kAccumulation; ++m)
        batches.push_back(nano_batch({rank, step, m}, 2, kAccumulation, 2, lengths[step]));
      for (const TokenBatch& batch : batches) views.push_back(batch.view());
      engine.train_batch(views);
      engine.eval_batch(views);
    }
  };
  return options;
}

std::int64_t activations(const RunResult& result, Tier tier) {
  return result.estimates[0][tier][Category::activations];
}

void expect_planned_peaks(const RunResult& result) {
  for (std::size_t rank = 0; rank < result.memory.size(); ++rank) {
    const MemoryEstimate& plan = result.estimates[rank];
    EXPECT_EQ(result.memory[rank].peak, plan.total());
    EXPECT_EQ(result.pinned_memory[rank].categories[Category::activations].peak,
              plan[Tier::pinned][Category::activations]);
    EXPECT_EQ(result.pinned_memory[rank].categories[Category::activations].current, 0);
    EXPECT_LE(result.pinned_memory[rank].peak, plan.total({Tier::pinned}));
  }
}

std::vector<Scenario> runs() {
  std::vector<Scenario> all;
  for (const int stage : {0, 3})
    for (const bool bf16 : {false, true})
      for (const RecomputationSettings& settings :
           {RecomputationSettings{.interval = 1}, {.interval = 2}, {.groups = 2}})
        if (!kSanitized || (stage == 3 && bf16 && settings.interval != 2))
          all.push_back({stage, bf16, settings});
  return all;
}

std::string name_of(const Scenario& run) {
  return concat("stage ", run.stage, run.bf16 ? ", bf16" : ", fp32", ", interval ",
                run.recomputation.interval, ", groups ", run.recomputation.groups);
}

TEST(KeptInputs, OnTheHostChangeNoBitAndTakeWhatThePlanSays) {
  for (const Scenario& run : runs()) {
    SCOPED_TRACE(name_of(run));
    const RunResult resident = run_engine(settings_for(run, false), run_options());
    const RunResult moved = run_engine(settings_for(run, true), run_options());
    EXPECT_TRUE(same_bits(resident, moved));
    expect_planned_peaks(resident);
    expect_planned_peaks(moved);
    EXPECT_EQ(activations(resident, Tier::pinned), 0);
    const std::int64_t hidden = 2 * kLongest * 16 * (run.bf16 ? 2 : 4);
    const std::int64_t groups = run.recomputation.interval == 1   ? 5
                                : run.recomputation.interval == 2 ? 3
                                                                  : 2;
    EXPECT_GE(activations(moved, Tier::pinned), (groups - 1) * hidden);  // the first has ids alone
    EXPECT_EQ(resident.memory[0].peak - moved.memory[0].peak,
              activations(resident, Tier::device) - activations(moved, Tier::device));
    EXPECT_GE(activations(resident, Tier::device), activations(moved, Tier::device));
    // Two groups' inputs are on the device at a time.
    EXPECT_TRUE(groups <= 3 ||
                activations(resident, Tier::device) > activations(moved, Tier::device));
  }
}

TEST(KeptInputs, OfHandWrittenOrdersAreMovedAsWell) {
  const Scenario run{3, true, {.interval = 1}};
  for (const NamedSchedule& c : hand_written_schedules()) {
    SCOPED_TRACE(c.name);
    RunOptions options = run_options();
    options.engine.schedule = c.schedule;
    const RunResult resident = run_engine(settings_for(run, false), options);
    const RunResult moved = run_engine(settings_for(run, true), options);
    EXPECT_TRUE(same_bits(resident, moved));
    expect_planned_peaks(moved);
    if (kSanitized) break;
  }
}

/// No more than the plan of each tier: copies that are under way wait for each other then.
TEST(KeptInputs, FitBudgetsOfExactlyThePlan) {
  const Scenario run{3, true, {.interval = 1}};
  RunOptions options = run_options();
  options.engine.sequence_length = kLongest;
  const RunResult free = run_engine(settings_for(run, true), options);
  options.budget_bytes = free.estimates[0].total();
  options.host_budget_bytes = free.estimates[0].total(kHostTiers);
  const RunResult held = run_engine(settings_for(run, true), options);
  EXPECT_TRUE(same_bits(free, held));
  expect_planned_peaks(held);
}

TEST(KeptInputs, ThatHostMemoryDoesNotHoldAreRefusedBeforeTheyAreMade) {
  const Scenario run{0, false, {.interval = 1}};
  RunOptions options = run_options();
  const RunResult free = run_engine(settings_for(run, true), options);
  const std::int64_t model = free.estimates[0].total(kHostTiers) - activations(free, Tier::pinned) -
                             free.estimates[0][Tier::pinned][Category::batches];
  options.host_budget_bytes = model + activations(free, Tier::pinned) - 1;
  for (const bool stated : {true, false}) {  // with the engine, or with the first longer batch
    options.engine.sequence_length = stated ? kLongest : 0;
    int steps = 0;
    const auto body = options.body;
    options.body = [&](Engine& engine, Module& module, int rank) {
      try {
        body(engine, module, rank);
      } catch (...) {
        if (rank == 0) steps = static_cast<int>(engine.global_steps());
        throw;
      }
    };
    try {
      run_engine(settings_for(run, true), options);
      FAIL() << "a budget of a byte less than the plan";
    } catch (const OutOfMemory& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("host"), std::string::npos) << what;
      EXPECT_NE(what.find("activations"), std::string::npos) << what;
      EXPECT_NE(what.find("--host-memory"), std::string::npos) << what;
    }
    EXPECT_EQ(steps, stated ? 0 : 1);
    options.body = body;
  }
}

TEST(KeptInputs, OfAScheduleNeedTheSettingThatMovesThem) {
  RunOptions options = run_options();
  options.engine.schedule = [](const StageBlocks& stage, int micro_batches) {
    return with_recomputation(plan_step(stage, micro_batches), stage, {.interval = 2}, true);
  };
  const Scenario run{0, false, {}};
  const RunResult plain = run_engine(settings_for(run, true), options);
  EXPECT_GT(activations(plain, Tier::pinned), 0);
  try {
    run_engine(settings_for(run, false), options);
    FAIL() << "no streams to move them";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("offload.activations"), std::string::npos);
  }
}

TEST(KeptInputs, AreSpokenOfInTheLineOfThePlan) {
  if (kSanitized) GTEST_SKIP() << "a text alone";
  for (const bool on_host : {false, true}) {
    std::string line;
    RunOptions options = run_options();
    options.after = [&](Engine& engine, int rank) {
      if (rank == 0) line = engine.model().plan().recomputation_line();
    };
    run_engine(settings_for({0, false, {.interval = 2}}, on_host), options);
    EXPECT_EQ(line, concat("recompute forward of 5 of 6 blocks again, in 3 groups of which inputs "
                           "are kept",
                           on_host ? " in host memory" : ""));
  }
}

}  // namespace
}  // namespace zero3d::test
