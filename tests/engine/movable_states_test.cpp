// offload_states and reload_states: between steps the device is free of what was named, no bit of
// training changes, and nothing can be done meanwhile that would need it.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

struct Trial {
  int stage = 3;
  const char* precision = "";
  const char* zero = "";  ///< More keys of zero_optimization.
  int accumulation = 1;
};

TrainSettings settings_for(const Trial& trial) {
  return settings_of(
      concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
             trial.accumulation, ", ", trial.precision,
             R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {)",
             trial.zero, R"("stage": )", trial.stage, "}}"),
      2);
}

RunOptions options_for(const Trial& trial) {
  return nano_options(nano_gpt2(true), 2, trial.accumulation);
}

/// Device bytes by category now.
std::int64_t held(Engine& engine, Category category) {
  return engine.model().device().memory().use().categories[category].current;
}

constexpr Category kMoved[] = {Category::parameters, Category::optimizer_states,
                               Category::gradients, Category::gradient_buckets,
                               Category::gathered_parameters};

/// Takes the states away and back after every step but the last.
RunResult run_with_moves(const Trial& trial, const MovableStates& which) {
  RunOptions options = options_for(trial);
  options.after_step = [&](Engine& engine, int, int step) {
    if (step == options.steps - 1) return;
    PerCategory<std::int64_t> before;
    for (const Category category : kMoved) before[category] = held(engine, category);
    const std::int64_t pinned = engine.model().device().memory(Tier::pinned).use().current;
    const std::int64_t planned = engine.model().memory().total(kHostTiers);
    engine.offload_states(which);
    const auto expect_left = [&](bool moved, std::initializer_list<Category> categories) {
      for (const Category category : categories)
        EXPECT_EQ(held(engine, category), moved ? 0 : before[category]) << name_of(category);
    };
    expect_left(which.parameters, {Category::parameters, Category::gathered_parameters});
    expect_left(which.optimizer_states, {Category::optimizer_states});
    expect_left(which.gradients, {Category::gradients, Category::gradient_buckets});
    engine.reload_states();
    EXPECT_EQ(engine.model().memory().total(kHostTiers), planned);
    for (const Category category : kMoved)
      EXPECT_EQ(held(engine, category), before[category]) << name_of(category);
    EXPECT_EQ(engine.model().device().memory(Tier::pinned).use().current, pinned);
  };
  return run_engine(settings_for(trial), options);
}

TEST(MovableStates, ChangeNoBit) {
  for (const Trial& trial : {
           Trial{.stage = 0},
           Trial{.stage = 1, .accumulation = 2},
           Trial{.stage = 2, .precision = R"("bf16": {"enabled": true}, )"},
           Trial{.stage = 3, .precision = R"("fp16": {"enabled": true}, )", .accumulation = 2},
           Trial{.stage = 3, .zero = R"("zero_hpz_partition_size": 2, )"},
           Trial{.stage = 3, .zero = R"("stage3_param_persistence_threshold": 0, )"},
           Trial{.stage = 3, .zero = R"("offload_optimizer": {"device": "cpu"}, )"},
           Trial{.stage = 3,
           .zero = R"("offload_optimizer": {"device": "cpu"}, )"
                   R"("offload_param": {"device": "cpu"}, )"},
       }) {
    SCOPED_TRACE(concat("stage ", trial.stage, " ", trial.zero, trial.precision));
    const RunResult plain = run_engine(settings_for(trial), options_for(trial));
    EXPECT_TRUE(same_bits(plain, run_with_moves(trial, {})));
    if (kSanitized) continue;
    EXPECT_TRUE(same_bits(plain, run_with_moves(trial, {.parameters = false})));
    EXPECT_TRUE(
        same_bits(plain, run_with_moves(trial, {.optimizer_states = false, .gradients = false})));
  }
}

void expect_refused(const char* call, const char* why, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << call << " was not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos)
        << call << ": " << error.what();
  }
}

TEST(MovableStates, AreMissedByNameWhileTheyAreAway) {
  RunOptions options = options_for({});
  const TokenBatch batch(2, 8);
  options.after = [&](Engine& engine, int) {
    engine.offload_states();
    const MicroBatch micro = batch.view();
    constexpr const char* kWhy = "call reload_states()";
    expect_refused("train_batch", kWhy, [&] { engine.train_batch({&micro, 1}); });
    expect_refused("forward", kWhy, [&] { engine.forward(micro); });
    expect_refused("eval_batch", kWhy, [&] { engine.eval_batch({&micro, 1}); });
    expect_refused("offload_states", kWhy, [&] { engine.offload_states(); });
    expect_refused("with_parameters", kWhy,
                   [&] { engine.model().with_parameters({}, -1, [](auto&, View) {}); });
    expect_refused("for_each_parameter", kWhy,
                   [&] { engine.model().for_each_parameter([](auto&, const ConstView&) {}); });
    engine.reload_states();
    engine.reload_states();  // nothing to do
    engine.forward(micro);
    expect_refused("offload_states within a window", "", [&] { engine.offload_states(); });
    engine.backward();
    engine.step();
  };
  run_engine(settings_for({}), options);
}

TEST(MovableStates, StayWhereTheHostHasNoRoom) {
  RunOptions options = options_for({});
  const RunResult plain = run_engine(settings_for({}), options);
  options.host_budget_bytes = 256 << 10;
  options.after_step = [](Engine& engine, int, int step) {
    const std::int64_t before = held(engine, Category::parameters);
    EXPECT_GT(before + held(engine, Category::optimizer_states), 256 << 10);
    if (step < 2) {
      EXPECT_THROW(engine.offload_states(), OutOfMemory);
    }
    EXPECT_EQ(held(engine, Category::parameters), before);
  };
  EXPECT_TRUE(same_bits(plain, run_engine(settings_for({}), options)));
}

}  // namespace
}  // namespace zero3d::test
