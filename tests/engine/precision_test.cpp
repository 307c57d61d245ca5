// Keys that choose number formats and what is looked at: each shown by an effect that the others do
// not have.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

std::string json_of(int stage, const std::string& top = "",
                    const std::string& optimizer = R"("type": "AdamW", "params": {"lr": 0.1})",
                    const std::string& zero = "") {
  return concat(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {)", optimizer, "}", top,
                R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
                stage, zero, "}}");
}

float gradient_of(const std::string& json, const RunOptions& options) {
  return run_engine(json, options).gradients[0].at("p0").at(0);
}

/// What travels is rounded to communication_data_type: 1 + 2^-10 is 1 in bf16 and itself in fp16
/// and fp32.
TEST(Communication, TheWireHasTheDtypeAskedFor) {
  RunOptions options = probe_options(
      {5}, [](int, const Moment& at) { return at.rank == 0 ? 1.0f + std::exp2f(-10) : 3.0f; }, 2);
  options.steps = 1;
  for (int stage = 0; stage <= 3; ++stage) {
    const float exact = 2.0f + std::exp2f(-11);
    EXPECT_EQ(gradient_of(json_of(stage), options), exact) << stage;
    EXPECT_EQ(gradient_of(json_of(stage, R"(, "communication_data_type": "fp32")"), options), exact)
        << stage;
    EXPECT_EQ(gradient_of(json_of(stage, R"(, "communication_data_type": "bf16")"), options), 2.0f)
        << stage;
    // The sum 4 + 2^-10 halves to 2 + 2^-11, which fp16 (steps of 2^-9 there) rounds to 2.
    EXPECT_EQ(gradient_of(json_of(stage, R"(, "communication_data_type": "fp16")"), options), 2.0f)
        << stage;
  }
}

/// An all-reduce of which the shard is kept gives the bits of a reduce-scatter, whatever gradients
/// are summed from and accumulated in, and within the plan.
TEST(Communication, WithoutReduceScatterTheBitsAreTheSame) {
  for (const char* precision :
       {"", R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true, "loss_scale": 8})"}) {
    for (const char* accumulation : {"fp32", "bf16", "fp16"}) {
      for (int stage = 1; stage <= 3; ++stage) {
        SCOPED_TRACE(concat(precision, ", accumulation ", accumulation, ", stage ", stage));
        const std::string top =
            concat(precision, R"(, "gradient_accumulation_steps": 2, "data_types": )",
                   R"({"grad_accum_dtype": ")", accumulation, R"("})");
        RunOptions options = nano_options(nano_gpt2(true), 2, 2, 1);
        options.steps = 2;
        const auto run_with = [&](const char* zero) {
          const RunResult result = run_engine(
              json_of(stage, top, R"("type": "AdamW", "params": {"lr": 0.01})", zero), options);
          EXPECT_LE(result.memory[0].peak, result.estimates[0].total()) << zero;
          return result;
        };
        EXPECT_TRUE(same_bits(run_with(""), run_with(R"(, "reduce_scatter": false)")));
      }
    }
  }
}

TEST(Communication, SumLeavesTheAverageOut) {
  RunOptions options = probe_options(
      {5}, [](int, const Moment& at) { return static_cast<float>(at.rank + 1); }, 2);
  options.steps = 1;
  for (int stage = 0; stage <= 2; ++stage) {
    EXPECT_EQ(gradient_of(json_of(stage, R"(, "gradient_allreduce_op": "mean")"), options), 1.5f)
        << stage;
    EXPECT_EQ(gradient_of(json_of(stage, R"(, "gradient_allreduce_op": "sum")"), options), 3.0f)
        << stage;
  }
  TrainSettings settings = settings_of(json_of(3), 2);  // DeepSpeed has no sums there
  settings.gradients.mean = false;
  EXPECT_EQ(run_engine(settings, options).gradients[0].at("p0").at(0), 3.0f);
}

TEST(Norm, MayBeLeftOutWithoutChangingTheUpdate) {
  for (const char* precision : {"", R"(, "bf16": {"enabled": true})"}) {
    for (const int stage : {1, 2}) {
      const std::string top = concat(R"(, "gradient_clipping": 0)", precision);
      const RunOptions options = nano_options(nano_gpt2(true), 2, 1, 1);
      const RunResult with = run_engine(json_of(stage, top), options);
      const RunResult without =
          run_engine(json_of(stage, top, R"("type": "AdamW", "params": {"lr": 0.1})",
                             R"(, "compute_grad_norm": false)"),
                     options);
      EXPECT_TRUE(std::isfinite(with.steps.back().grad_norm));
      EXPECT_TRUE(std::isnan(without.steps.back().grad_norm));
      EXPECT_TRUE(same_state(with.state, without.state)) << stage;
    }
  }
}

TEST(Norm, LeftOutStillLooksForWhatIsNotFinite) {
  for (const char* precision : {"", R"(, "bf16": {"enabled": true})"}) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      RunOptions options = probe_options(
          {5}, [=](int, const Moment& at) { return at.rank == 1 && at.step == 1 ? bad : 1.0f; }, 2);
      for (const int stage : {1, 2}) {
        const RunResult result = run_engine(
            json_of(stage, concat(R"(, "gradient_clipping": 0)", precision),
                    R"("type": "AdamW", "params": {"lr": 0.1})", R"(, "compute_grad_norm": false)"),
            options);
        for (std::size_t step = 0; step < 3; ++step)
          EXPECT_EQ(result.steps[step].skipped, step == 1) << precision << stage;
        for (const float value : ParameterState::floats(result.state.at("p0").states.at(0)))
          EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

/// Fewer bits to accumulate in than to send: 0 and 1 round before the sum over ranks, 2 and 3 after
/// it, as 1 does when it reduces each micro-batch.
TEST(StagesAgree, InPairsWhenAccumulationRoundsGradients) {
  const std::string top =
      R"(, "communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "bf16"})";
  RunOptions options = nano_options(nano_gpt2(true), 2, 1, 1);
  std::vector<RunResult> runs;
  for (int stage = 0; stage <= 3; ++stage) runs.push_back(run_engine(json_of(stage, top), options));
  EXPECT_TRUE(same_bits(runs[0], runs[1]));
  EXPECT_TRUE(same_bits(runs[2], runs[3]));
  EXPECT_NE(runs[1].steps[0].grad_norm, runs[2].steps[0].grad_norm);
  options.engine.reduce_each_micro_batch = true;
  EXPECT_TRUE(same_bits(run_engine(json_of(1, top), options), runs[2]));
}

/// DeepSpeed's stage 0 has another loss scaler.
TEST(StagesAgree, AfterAnOverflowButForStage0) {
  const std::string top =
      R"(, "fp16": {"enabled": true, "initial_scale_power": 4, "hysteresis": 2})";
  RunOptions options = probe_options(
      {5}, [](int, const Moment& at) { return at.step == 0 ? 1e5f : 1.0f; }, 2);
  std::vector<RunResult> runs;
  for (int stage = 0; stage <= 3; ++stage) runs.push_back(run_engine(json_of(stage, top), options));
  EXPECT_TRUE(same_bits(runs[1], runs[2]));
  EXPECT_TRUE(same_bits(runs[2], runs[3]));
  for (int stage = 0; stage <= 3; ++stage) {
    const auto& steps = runs[static_cast<std::size_t>(stage)].steps;
    EXPECT_TRUE(steps[0].skipped);
    EXPECT_EQ(steps[1].loss_scale, stage == 0 ? 8 : 16);
  }
}

/// False lets a bf16 gradient that is not finite into the weights, at stages 1 and 2 only, as in
/// DeepSpeed.
TEST(Norm, CheckGradOverflowFalseTakesWhatComes) {
  RunOptions options = probe_options(
      {5},
      [](int, const Moment& at) {
        return at.rank == 1 ? std::numeric_limits<float>::infinity() : 1.0f;
      },
      2);
  options.steps = 1;
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult checked = run_engine(json_of(stage, R"(, "bf16": {"enabled": true})"), options);
    EXPECT_TRUE(checked.steps[0].skipped) << stage;
    const RunResult taken = run_engine(
        json_of(stage, R"(, "bf16": {"enabled": true, "check_grad_overflow": false})"), options);
    EXPECT_EQ(taken.steps[0].skipped, stage == 0 || stage == 3) << stage;
    if (taken.steps[0].skipped) continue;
    for (const float value : ParameterState::floats(taken.state.at("p0").master))
      EXPECT_FALSE(std::isfinite(value));
  }
}

struct Formats {
  const char* top;
  std::size_t master_bytes;  ///< Per element; 0: the parameter is its own master.
  std::size_t moment_bytes;
  const char* line;
};

TEST(Masters, AndMomentsHaveTheDtypesAskedFor) {
  const Formats choices[] = {
      {R"(, "bf16": {"enabled": true})", 4, 4,
       "accumulation fp32, communication fp32, masters fp32, moments fp32"},
      {R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})",
       0, 2, "accumulation bf16, communication bf16, masters bf16, moments bf16"},
      {R"(, "fp16": {"enabled": true, "loss_scale": 8})", 4, 4,
       "accumulation fp32, communication fp32, masters fp32, moments fp32"},
      {R"(, "fp16": {"enabled": true, "loss_scale": 8, "fp16_master_weights_and_grads": true})", 0,
       4, "accumulation fp16, communication fp16, masters fp16, moments fp32"}};
  for (const Formats& choice : choices) {
    RunOptions options = nano_options(nano_gpt2(false), 2, 1, 1);
    options.steps = 8;
    std::string line;
    options.after = [&](Engine& engine, int rank) {
      if (rank == 0) line = engine.model().plan().precision_line();
    };
    const std::string optimizer = R"("type": "AdamW", "params": {"lr": 0.01})";
    const RunResult first = run_engine(json_of(1, choice.top, optimizer), options);
    EXPECT_NE(line.find(choice.line), std::string::npos) << line;
    EXPECT_LT(first.steps.back().loss, first.steps.front().loss + 0.5) << choice.top;
    for (const auto& [name, state] : first.state) {
      const std::size_t numel = state.value.size() / 2;
      EXPECT_EQ(state.master.size(), numel * choice.master_bytes) << name;
      for (const auto& moment : state.states)
        EXPECT_EQ(moment.size(), numel * choice.moment_bytes) << name;
    }
    for (const int stage : {2, 3}) {
      EXPECT_TRUE(
          same_state(first.state, run_engine(json_of(stage, choice.top, optimizer), options).state))
          << choice.top << stage;
    }
  }
}

TEST(Masters, AreWhatParametersAreRoundedFrom) {
  RunOptions options = nano_options(nano_gpt2(true), 2, 1, 1);
  const std::string optimizer = R"("type": "AdamW", "params": {"lr": 0.01})";
  options.steps = 0;
  const RunResult before = run_engine(json_of(0, R"(, "bf16": {"enabled": true})"), options);
  options.steps = 2;
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult run =
        run_engine(json_of(stage, R"(, "bf16": {"enabled": true})", optimizer), options);
    for (const auto& [name, state] : run.state) {
      EXPECT_FALSE(state.value == before.state.at(name).value) << name << ", stage " << stage;
      const std::vector<float> masters = ParameterState::floats(state.master);
      std::vector<bf16> rounded;
      for (const float master : masters) rounded.push_back(to_bf16(master));
      ASSERT_EQ(state.value.size(), rounded.size() * sizeof(bf16));
      EXPECT_EQ(std::memcmp(state.value.data(), rounded.data(), state.value.size()), 0) << name;
    }
  }
}

/// What Muon and LAMB need for a step is part of the plan that a budget is kept by.
TEST(Budget, CountsTheOptimizersWorkspace) {
  ModelConfig model = nano_gpt2(false);
  model.hidden_size = 32;
  model.head_dim = 8;
  model.intermediate_size = 128;
  model.layers = 6;
  for (const char* type : {"Muon", "Lamb"}) {
    const std::string optimizer = concat(R"("type": ")", type, R"(", "params": {"lr": 0.01})");
    const std::string untested = R"(, "zero_allow_untested_optimizer": true)";
    RunOptions options = nano_options(model, 2, 1, 1);
    const RunResult narrow = run_engine(
        json_of(
            3, untested, optimizer,
            R"(, "stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0)"),
        options);
    options.budget_bytes = narrow.estimates[0].total();
    const RunResult wide = run_engine(json_of(3, untested, optimizer), options);
    EXPECT_LE(wide.estimates[0].total(), options.budget_bytes) << type;
    EXPECT_TRUE(same_state(narrow.state, wide.state)) << type;
  }
}

}  // namespace
}  // namespace zero3d::test
