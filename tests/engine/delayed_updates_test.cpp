// Updates at two paces: where they come to the same as one update of everything, what no knob may
// change, what they take, and what they refuse.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

/// Its matrices have 4 to 12 blocks.
ModelConfig blocky_model() {
  ModelConfig config = nano_gpt2(true);
  config.hidden_size = 64;
  config.head_dim = 16;
  config.intermediate_size = 128;
  return config;
}

struct Trial {
  int stage = 2;
  int ranks = 2;
  int accumulation = 1;
  const char* precision = "";
  const char* zero = "";  ///< More keys of zero_optimization.
  std::int64_t tile = 4096;
  double ratio = 1;
  Tier tier = Tier::pinned;
};

TrainSettings settings_for(const Trial& run, const DelayedUpdateSettings& delayed) {
  TrainSettings settings = settings_of(
      concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, )",
             R"("gradient_accumulation_steps": )", run.accumulation, ", ", run.precision,
             R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {)",
             run.zero, R"("sub_group_size": )", run.tile, R"(, "stage": )", run.stage, "}}"),
      run.ranks);
  settings.offload.optimizer.device = OffloadDevice::cpu;
  settings.offload.optimizer.ratio = run.ratio;
  settings.offload.optimizer.pin_memory = run.tier == Tier::pinned;
  settings.delayed_updates = delayed;
  return settings;
}

RunOptions options_for(const Trial& run, int steps) {
  RunOptions options = nano_options(blocky_model(), run.ranks, run.accumulation);
  options.steps = steps;
  options.after = [](Engine& engine, int) { engine.flush_updates(); };
  return options;
}

RunResult train(const Trial& run, const DelayedUpdateSettings& delayed, int steps = 5) {
  return run_engine(settings_for(run, delayed), options_for(run, steps));
}

/// The plan is the counters' peak.
void expect_planned(const RunResult& result, Tier tier, const std::string& what) {
  for (std::size_t rank = 0; rank < result.memory.size(); ++rank) {
    const MemoryEstimate& plan = result.estimates[rank];
    EXPECT_EQ(result.memory[rank].peak, plan.total()) << what;
    for (const Category category : {Category::optimizer_states, Category::optimizer_workspace}) {
      EXPECT_EQ(result.memory[rank].categories[category].peak, plan[Tier::device][category])
          << what << " " << name_of(category);
    }
    if (tier != Tier::pinned) continue;
    for (const Category category : {Category::optimizer_states, Category::gradients})
      EXPECT_EQ(result.pinned_memory[rank].categories[category].peak, plan[Tier::pinned][category])
          << what << " pinned " << name_of(category);
  }
}

const char* const kBf16 = R"("bf16": {"enabled": true}, )";
const char* const kFp16 = R"("fp16": {"enabled": true, "initial_scale_power": 20}, )";
const char* const kBf16Sums =
    R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"}, )";
const char* const kBf16States =
    R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}, )";

/// fp16 skips its first steps here.
const Trial kTrials[] = {{.stage = 1, .accumulation = 2},
                         {.stage = 2, .precision = kBf16},
                         {.stage = 3, .precision = kFp16},
                         {.stage = 2, .accumulation = 2, .precision = kBf16Sums},
                         {.stage = 2, .precision = kBf16States},
                         {.stage = 3, .ratio = 0.5},
                         {.stage = 3, .ranks = 4, .zero = R"("zero_hpz_partition_size": 2, )"},
                         {.stage = 3, .ranks = 1, .zero = R"("reduce_scatter": false, )"}};

std::string name_of(const Trial& run) {
  return concat("stage ", run.stage, ", ", run.ranks, " ranks, ", run.precision, run.zero);
}

TEST(DelayedUpdates, RoundsOfOneStepChangeNoBit) {
  for (const Trial& run : kTrials) {
    if (kSanitized && run.ranks > 2) continue;
    const RunResult expected = train(run, {});
    const RunResult delayed =
        train(run, {.update_every = 1, .share = 0.3, .select_every = 1 + run.stage % 2});
    EXPECT_TRUE(same_bits(expected, delayed)) << name_of(run);
    expect_planned(delayed, run.tier, name_of(run));
  }
}

TEST(DelayedUpdates, ChoosingEverythingChangesNoBit) {
  for (const Trial& run : {kTrials[0], kTrials[1], kTrials[5]}) {
    const RunResult delayed =
        train(run, {.update_every = 3, .share = 1, .select_every = 3, .overlap = true});
    EXPECT_TRUE(same_bits(train(run, {}), delayed)) << name_of(run);
    expect_planned(delayed, run.tier, name_of(run));
  }
}

TEST(DelayedUpdates, TheWarmUpIsThePlainRun) {
  const Trial run;
  EXPECT_TRUE(
      same_bits(train(run, {}), train(run, {.update_every = 3, .overlap = true, .warm_up = 5})));
}

/// What moves data, and where state lies, is not what is computed.
TEST(DelayedUpdates, NoKnobChangesABit) {
  for (const bool overlap : {false, true}) {
    const DelayedUpdateSettings delayed = {
        .update_every = 2, .share = 0.3, .select_every = 2, .overlap = overlap};
    const char* const precision = overlap ? kBf16 : "";
    const RunResult expected = train({.precision = precision}, delayed);
    EXPECT_FALSE(same_bits(train({.precision = precision}, {}), expected)) << "nothing waits";
    for (const Trial& run :
         {Trial{.stage = 1},
          Trial{.stage = 3, .zero = R"("stage3_param_persistence_threshold": 0, )"},
          Trial{.zero = R"("reduce_bucket_size": 1000, "allgather_bucket_size": 2000, )"},
          Trial{.zero = R"("overlap_comm": false, )", .tile = 1024},
          Trial{.tile = 0, .tier = Tier::pageable}}) {
      if (kSanitized && run.stage != 3) continue;
      Trial same = run;
      same.precision = precision;
      const RunResult moved = train(same, delayed);
      EXPECT_TRUE(same_bits(expected, moved)) << name_of(same);
      expect_planned(moved, same.tier, name_of(same));
    }
    for (const std::uint64_t jitter : {1, 3}) {
      RunOptions options = options_for({}, 5);
      options.jitter_seed = jitter;
      options.threads = static_cast<int>(jitter);
      EXPECT_TRUE(
          same_bits(expected, run_engine(settings_for({.precision = precision}, delayed), options)))
          << "jitter " << jitter;
    }
  }
}

TEST(DelayedUpdates, StatesMayLeaveTheDeviceBetweenSteps) {
  for (const bool overlap : {false, true}) {
    const TrainSettings settings =
        settings_for({}, {.update_every = 2, .share = 0.3, .select_every = 4, .overlap = overlap});
    RunOptions options = options_for({}, 5);
    const RunResult expected = run_engine(settings, options);
    options.after_step = [](Engine& engine, int, int) {
      engine.offload_states();
      EXPECT_EQ(
          engine.model().device().memory().use().categories[Category::optimizer_states].current, 0);
      engine.reload_states();
    };
    EXPECT_TRUE(same_bits(expected, run_engine(settings, options)));
  }
}

/// Reading states or evaluating within a round does not end it.
TEST(DelayedUpdates, LookingChangesNothing) {
  const TrainSettings settings =
      settings_for({}, {.update_every = 3, .share = 0.3, .select_every = 3, .overlap = true});
  RunOptions options = options_for({}, 5);
  const RunResult expected = run_engine(settings, options);
  options.after_step = [](Engine& engine, int rank, int step) {
    engine.model().optimizer().for_each_slice([](const StateSlice&, Stream&) {});
    engine.model().with_parameters({"transformer.h.0.mlp.c_fc.weight"}, -1,
                                   [](const ParameterSpec&, View) {});
    const TokenBatch batch = nano_batch({rank, step, 0}, 2, 1, 2);
    const std::vector<MicroBatch> batches = {batch.view()};
    engine.eval_batch(batches);
  };
  EXPECT_TRUE(same_bits(expected, run_engine(settings, options)));
}

/// An edit is of the model as it is, with nothing under way, and stays.
TEST(DelayedUpdates, EditsEndTheRoundAndStay) {
  const std::string name = "transformer.h.0.mlp.c_fc.weight";
  for (const bool overlap : {false, true}) {
    const TrainSettings settings =
        settings_for({}, {.update_every = 3, .share = 0.3, .select_every = 3, .overlap = overlap});
    const auto run = [&](bool by_hand) {
      RunOptions options = options_for({}, 8);
      options.after_step = [&, by_hand](Engine& engine, int, int step) {
        if (step != 4) return;
        if (by_hand) engine.flush_updates();
        engine.model().with_parameters({name}, 0, [](const ParameterSpec&, View value) {
          for (std::int64_t i = 0; i < value.numel(); ++i) value.as<float>()[i] *= 0.5f;
        });
        if (by_hand) engine.flush_updates();  // nothing is left
        float first = 0;
        engine.model().with_parameters(
            {name}, -1, [&](const ParameterSpec&, View value) { first = value.as<float>()[0]; });
        EXPECT_NE(first, 0);
        engine.model().optimizer().for_each_slice([&](const StateSlice& slice, Stream& stream) {
          stream.synchronize();
          const auto& parameter = engine.model().plan().layout.parameter(slice.parameter);
          if (parameter.spec.name != name || slice.first != 0) return;
          const ConstView master = engine.model().device().host_read(slice.master);
          EXPECT_EQ(master.as<float>()[0], first);
        });
      };
      return run_engine(settings, options);
    };
    EXPECT_TRUE(same_bits(run(false), run(true)));
  }
}

TEST(DelayedUpdates, TellWhatWasUpdatedWhere) {
  const RunResult result =
      train({.ranks = 1},
            {.update_every = 3, .share = 0.3, .select_every = 6, .overlap = true, .warm_up = 1}, 8);
  std::int64_t all = 0;
  std::int64_t chosen = 0;
  std::string text;
  for (const StepResult& step : result.steps) {
    ASSERT_TRUE(step.updates);
    const UpdateUse& use = *step.updates;
    text += concat(use.waiting, use.chosen ? "c" : "", use.on_host > 0 ? "h " : " ");
    if (step.step == 1) all = use.on_host;
    if (step.step == 2) chosen = use.on_device;
    EXPECT_EQ(use.on_device, step.step == 1 ? 0 : chosen) << step.step;
    EXPECT_TRUE(use.on_host == 0 || use.on_host == (step.step == 1 ? all : all - chosen));
  }
  EXPECT_EQ(text, "0h 1c 2 0h 1 2 0h 1c ");
  EXPECT_GT(chosen, all / 4);
  EXPECT_LT(chosen, all * 2 / 3);
  EXPECT_FALSE(train({}, {}, 1).steps[0].updates);
}

TEST(DelayedUpdates, RefuseByNameWhatTheyCannotWorkWith) {
  struct Refused {
    const char* part;
    std::function<void(TrainSettings&)> change;
  };
  const DelayedUpdateSettings good = {.update_every = 4, .share = 0.1, .select_every = 8};
  EXPECT_NO_THROW(train({}, good, 1));
  for (const Refused& refused : {
           Refused{"share is 0", [](auto& s) { s.delayed_updates.share = 0; }},
           Refused{"share is 1.5", [](auto& s) { s.delayed_updates.share = 1.5; }},
           Refused{"delayed_updates.warm_up is -1",
                   [](auto& s) { s.delayed_updates.warm_up = -1; }},
           Refused{"delayed_updates.update_every is -1",
                   [](auto& s) { s.delayed_updates.update_every = -1; }},
           Refused{"chooses every 3 steps", [](auto& s) { s.delayed_updates.select_every = 3; }},
           Refused{"steps_of_epoch", [](auto& s) { s.delayed_updates.select_epochs = 1; }},
           Refused{"it is on none",
                   [](auto& s) { s.offload.optimizer.device = OffloadDevice::none; }},
           Refused{"it is on nvme",
                   [](auto& s) {
                     s.offload.optimizer.device = OffloadDevice::nvme;
                     s.offload.optimizer.paths = {"/nowhere"};
                   }},
           Refused{"offload.parameters",
                   [](auto& s) { s.offload.parameters.device = OffloadDevice::cpu; }},
           Refused{"the optimizer is Lion", [](auto& s) { s.optimizer.type = "Lion"; }},
           Refused{"stage 0", [](auto& s) { s.sharding.what = sharding_policy(0); }},
       }) {
    TrainSettings settings = settings_for({}, good);
    refused.change(settings);
    try {
      run_engine(settings, options_for({}, 1));
      FAIL() << refused.part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << error.what();
      EXPECT_NE(std::string(error.what()).find(refused.part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace zero3d::test
