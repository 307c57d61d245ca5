// Every optimizer under every ZeRO stage and rank count: the same bits, whether its rule looks at
// single elements, at norms over whole parameters (LAMB) or at whole matrices (Muon), and though
// shards cut parameters anywhere.
#include <gtest/gtest.h>

#include <cmath>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

/// Wide enough that shards cut its matrices.
ModelConfig wider_model() {
  ModelConfig config = nano_gpt2(true);
  config.hidden_size = 32;
  config.head_dim = 8;
  config.intermediate_size = 128;
  return config;
}

struct Choice {
  const char* type;
  const char* params;
};

std::string json_of(const Choice& choice, int stage, int accumulation, const std::string& top = "",
                    const std::string& zero = "") {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, "gradient_accumulation_steps": )",
      accumulation, R"(, "zero_allow_untested_optimizer": true, "optimizer": {"type": ")",
      choice.type, R"(", "params": {)", choice.params, "}}", top.empty() ? "" : ", ", top,
      R"(, "zero_optimization": {"stage": )", stage,
      stage == 3 && zero.find("persistence") == std::string::npos
          ? R"(, "stage3_param_persistence_threshold": 0)"
          : "",
      zero.empty() ? "" : ", ", zero, "}}");
}

class Optimizers : public ::testing::TestWithParam<Choice> {};

TEST_P(Optimizers, StagesAreTheSameBits) {
  for (const int ranks : {1, 2, 3}) {
    const RunOptions options = nano_options(wider_model(), ranks, 1);
    const RunResult plain = run_engine(json_of(GetParam(), 0, 1), options);
    for (int stage = 1; stage <= 3; ++stage) {
      const RunResult sharded = run_engine(json_of(GetParam(), stage, 1), options);
      EXPECT_EQ(plain.steps.back().loss, sharded.steps.back().loss) << stage;
      EXPECT_EQ(plain.steps.back().grad_norm, sharded.steps.back().grad_norm) << stage;
      EXPECT_TRUE(same_state(plain.state, sharded.state))
          << "stage " << stage << ", " << ranks << " ranks";
    }
  }
}

TEST_P(Optimizers, KnobsThatCutTheWorkMoveNoBit) {
  const RunOptions options = nano_options(wider_model(), 2, 2);
  const RunResult plain = run_engine(json_of(GetParam(), 3, 2), options);
  for (const char* zero :
       {R"("sub_group_size": 1024)", R"("sub_group_size": 0, "reduce_bucket_size": 1000)",
        R"("reduce_scatter": false, "overlap_comm": false)"}) {
    const RunResult cut = run_engine(json_of(GetParam(), 3, 2, "", zero), options);
    EXPECT_TRUE(same_state(plain.state, cut.state)) << zero;
  }
}

TEST_P(Optimizers, SixteenBitsWithMastersAgreeOverStages) {
  const RunOptions options = nano_options(wider_model(), 2, 1);
  for (const char* precision :
       {R"("bf16": {"enabled": true})", R"("fp16": {"enabled": true, "loss_scale": 128})"}) {
    const RunResult plain = run_engine(json_of(GetParam(), 1, 1, precision), options);
    const RunResult sharded = run_engine(json_of(GetParam(), 3, 1, precision), options);
    EXPECT_TRUE(same_state(plain.state, sharded.state)) << precision;
    EXPECT_GT(plain.steps.front().loss, plain.steps.back().loss - 1.0) << precision;
  }
}

/// Most ranks own nothing but padding; whether they take part in a collective is not theirs to say.
TEST_P(Optimizers, RanksThatOwnOnlyPaddingTakePart) {
  const auto blocks = [](int) {
    const auto gradient = [](const ProbeClock& at) { return 0.5f + static_cast<float>(at.step); };
    return std::vector<ProbeBlockSpec>{{{probe_parameter("matrix", Shape{2, 2}, gradient)}},
                                       {{probe_parameter("vector", Shape{1}, gradient)}}};
  };
  const RunOptions options = probe_options(blocks, 7);
  const RunResult plain = run_engine(json_of(GetParam(), 0, 1), options);
  for (int stage = 1; stage <= 3; ++stage) {
    for (const int persistent : {0, 1, 4}) {
      const std::string zero = concat(R"("stage3_param_persistence_threshold": )", persistent);
      EXPECT_TRUE(same_bits(plain, run_engine(json_of(GetParam(), stage, 1, "", zero), options)))
          << "stage " << stage << ", persistent up to " << persistent;
      if (stage < 3) break;
    }
  }
}

/// Gradients are powers of two in fp16, and the scale is taken out of them before anything else.
TEST_P(Optimizers, TheLossScaleChangesNoBit) {
  const RunOptions options = probe_options(
      [](int rank) {
        ProbeParameter matrix = probe_parameter("matrix", Shape{40, 60}, {});
        matrix.gradient = [rank](const ProbeClock& at, std::int64_t i) {
          return std::exp2f(static_cast<float>((7 * i + at.step + rank) % 5 - 4));
        };
        return std::vector<ProbeBlockSpec>{{{matrix}}};
      },
      2);
  const auto state = [&](const char* scale) {
    const std::string top = concat(R"("fp16": {"enabled": true, "loss_scale": )", scale, "}");
    return run_engine(json_of(GetParam(), 1, 1, top), options).state;
  };
  const ModelState one = state("1");
  const ModelState scaled = state("64");
  EXPECT_TRUE(one.at("matrix").value == scaled.at("matrix").value);
  EXPECT_TRUE(one.at("matrix").master == scaled.at("matrix").master);
  EXPECT_TRUE(one.at("matrix").states == scaled.at("matrix").states);
}

/// Without decay and bias correction a step is lr |p| / |d| of the direction d: where elements are
/// equal, lr of the parameter itself, whatever its gradient.
TEST(Lamb, MovesEachParameterByTheSameShareOfItself) {
  const auto blocks = [](int) {
    const auto parameter = [](const char* name, std::int64_t size, float value, float gradient) {
      ProbeParameter made =
          probe_parameter(name, Shape{size}, [gradient](const ProbeClock&) { return gradient; });
      made.spec.initial = constant_values(value);
      return made;
    };
    return std::vector<ProbeBlockSpec>{
        {{parameter("small", 900, 0.5f, 3.0f), parameter("large", 1700, 4.0f, 0.125f)}},
        {{parameter("negative", 2500, -2.0f, 1.0f)}}};
  };
  const Choice choice{"Lamb", R"("lr": 0.125, "bias_correction": false, "weight_decay": 0)"};
  RunOptions options = probe_options(blocks, 4);
  options.steps = 1;
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult run = run_engine(json_of(choice, stage, 1), options);
    for (const auto& [name, before] :
         {std::pair{"small", 0.5f}, {"large", 4.0f}, {"negative", -2.0f}}) {
      const float step = -0.125f * std::abs(before);  // against the gradient, which is positive
      for (const float found : ParameterState::floats(run.state.at(name).value))
        ASSERT_NEAR(found, before + step, 1e-6) << name << ", stage " << stage;
    }
  }
}

/// What a state begins with lies beside the master where there is one.
TEST(Adagrad, BeginsWithItsInitialAccumulatorInEveryPrecision) {
  const Choice choice{"Adagrad", R"("lr": 0.5, "initial_accumulator_value": 3.0, "eps": 0)"};
  RunOptions options = probe_options(
      {1500}, [](int, const Moment&) { return 1.0f; }, 2);
  options.steps = 1;
  for (const char* precision : {"", R"("bf16": {"enabled": true})"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      TrainSettings settings = settings_of(json_of(choice, stage, 1, precision), 2);
      settings.gradients.max_norm = 0;
      const RunResult run = run_engine(settings, options);
      for (const float sum : ParameterState::floats(run.state.at("p0").states.at(0)))
        ASSERT_EQ(sum, 4.0f) << precision << ", stage " << stage;
      const ParameterState& p0 = run.state.at("p0");
      for (const float weight : ParameterState::floats(p0.master.empty() ? p0.value : p0.master))
        ASSERT_EQ(weight, 0.75f) << precision << ", stage " << stage;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Optimizers,
    ::testing::Values(Choice{"AdamW", R"("lr": 0.01, "weight_decay": 0.1)"},
                      Choice{"Adam", R"("lr": 0.01, "weight_decay": 0.1, "adam_w_mode": false)"},
                      Choice{"Adagrad", R"("lr": 0.01)"},
                      Choice{"Lion", R"("lr": 0.001, "weight_decay": 0.1)"},
                      Choice{"SGD", R"("lr": 0.1, "momentum": 0.9, "nesterov": true)"},
                      Choice{"RMSprop", R"("lr": 0.001, "momentum": 0.9, "centered": true)"},
                      Choice{"Lamb", R"("lr": 0.01, "weight_decay": 0.1)"},
                      Choice{"Muon", R"("lr": 0.01, "weight_decay": 0.1)"}),
    [](const auto& choice) { return std::string(choice.param.type); });

}  // namespace
}  // namespace zero3d::test
