// What ranks agree on before they plan: they gather in one order though their budgets or their
// batches differ, and what was worked out for other ranks is refused.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

constexpr int kRanks = 3;
constexpr const char* kJson =
    R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
                              "stage3_prefetch_bucket_size": 1000000000}})";

/// What a rank is given, and what came of it.
struct Case {
  std::int64_t budget = TrackingResource::kUnlimited;
  std::int64_t rows = 2;
};
struct Outcome {
  std::int64_t arena = 0;
  std::int64_t peak = 0;
  std::int64_t estimate = 0;
  double norm = 0;
};

std::vector<Outcome> train(const std::vector<Case>& cases) {
  const TrainSettings settings = settings_of(kJson, kRanks);
  std::vector<Outcome> outcomes(kRanks);
  const LogCapture quiet;
  run_ranks(kRanks, [&](Communicator& world) {
    const Case& mine = cases[static_cast<std::size_t>(world.rank())];
    CpuDeviceOptions options;
    options.rank = world.rank();
    options.budget_bytes = mine.budget;
    const auto device = make_cpu_device(options);
    const auto module = build_model(nano_gpt2(true));
    const Mesh mesh(world);
    Engine engine(settings, *module, mesh, *device);
    const TokenBatch batch = nano_batch({world.rank(), 0, 0}, kRanks, 1, mine.rows);
    const MicroBatch view = batch.view();
    for (int step = 0; step < 2; ++step) engine.train_batch({&view, 1});
    outcomes[static_cast<std::size_t>(world.rank())] = {
        engine.model().passes().arena_elements(), device->memory().use().peak,
        engine.memory_estimate(mine.rows, kNanoSequence).total(), engine.get_global_grad_norm()};
  });
  return outcomes;
}

TEST(Agreement, OfRanksWithDifferentBudgetsAllPlanForTheSmallest) {
  const std::vector<Outcome> free = train({{}, {}, {}});
  const std::int64_t narrow = free[0].estimate - free[0].arena;  // bytes: a quarter of the arena
  const std::vector<Outcome> mixed = train({{}, {.budget = narrow}, {.budget = free[0].estimate}});
  EXPECT_LE(mixed[1].peak, narrow);
  for (const Outcome& outcome : mixed) {
    EXPECT_LT(outcome.arena, free[0].arena) << "the budget must clip something";
    EXPECT_EQ(outcome.arena, mixed[0].arena);
    EXPECT_EQ(outcome.norm, free[0].norm);
  }
}

TEST(Agreement, OfRanksWithDifferentBatchesAllPlanForTheLargest) {
  const std::vector<Outcome> large = train({{.rows = 5}, {.rows = 5}, {.rows = 5}});
  const std::int64_t budget = large[0].estimate - large[0].arena;
  const std::vector<Outcome> clipped = train(std::vector<Case>(kRanks, {budget, 5}));
  const std::vector<Outcome> mixed = train({{budget, 1}, {budget, 5}, {budget, 2}});
  for (const Outcome& outcome : mixed) {
    EXPECT_LE(outcome.peak, budget);
    EXPECT_EQ(outcome.arena, clipped[0].arena);
  }
}

TEST(Agreement, SettingsForOtherRanksAreRefused) {
  for (const int ranks : {1, 3}) {
    TrainSettings settings = settings_of(kJson, 2);
    const auto start = [&](const char* part) {
      run_ranks(ranks, [&](Communicator& world) {
        const auto module = build_model(nano_gpt2(true));
        const auto device = make_cpu_device({});
        const Mesh mesh(world);
        try {
          Engine engine(settings, *module, mesh, *device);
          ADD_FAILURE() << "trains on " << ranks << " ranks";
        } catch (const ConfigError& error) {
          EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
        world.check();  // refused, not failed
      });
    };
    start("the settings are for dp 2, and the");
    settings.dp = ranks;
    settings.tp = 2;
    start("the settings are for tp 2, and the");
  }
}

}  // namespace
}  // namespace zero3d::test
