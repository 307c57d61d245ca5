// The numerics contract of the engine, bit for bit: ZeRO stages against each other, and every knob
// that may only move data or change when it moves. Compared are losses, norms, averaged gradients,
// moments, masters and parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

struct Scenario {
  std::string model = "gpt2";
  int ranks = 2;
  int accumulation = 1;
  bool bf16 = false;
};

std::string name_of(const Scenario& scenario) {
  return concat(scenario.model, ", ", scenario.ranks, " ranks, accumulation ",
                scenario.accumulation, scenario.bf16 ? ", bf16" : ", fp32");
}

/// Keys that a knob adds: to zero_optimization and to the top level, as JSON members.
struct Keys {
  std::string zero;
  std::string top;
};

std::string json_of(const Scenario& scenario, int stage, const Keys& keys = {}) {
  const bool persistence_given = keys.zero.find("persistence_threshold") != std::string::npos;
  return concat(
      R"({"train_micro_batch_size_per_gpu": )", scenario.model == "probe" ? 1 : 2,
      R"(, "gradient_accumulation_steps": )", scenario.accumulation,
      R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})",
      R"(, "gradient_clipping": 0.5)", scenario.bf16 ? R"(, "bf16": {"enabled": true})" : "",
      keys.top.empty() ? "" : ", ", keys.top, R"(, "zero_optimization": {"stage": )", stage,
      stage == 3 && !persistence_given ? R"(, "stage3_param_persistence_threshold": 0)" : "",
      keys.zero.empty() ? "" : ", ", keys.zero, "}}");
}

RunOptions options_of(const Scenario& scenario) {
  if (scenario.model == "gpt2")
    return nano_options(nano_gpt2(false), scenario.ranks, scenario.accumulation);
  if (scenario.model == "gpt2-tied")
    return nano_options(nano_gpt2(true), scenario.ranks, scenario.accumulation);
  if (scenario.model == "llama")
    return nano_options(nano_llama(false), scenario.ranks, scenario.accumulation);
  if (scenario.model == "llama-tied")
    return nano_options(nano_llama(true), scenario.ranks, scenario.accumulation);
  return probe_options(
      {13, 2500, 0, 1024, 1, 1025},
      [](int parameter, const Moment& at) {
        return static_cast<float>((at.rank + 1) * (1 << at.micro_batch) *
                                  ((parameter + at.step) % 3 - 1)) +
               0.1f * static_cast<float>(parameter);
      },
      scenario.ranks);
}

RunResult run(const Scenario& scenario, int stage, const Keys& keys = {},
              const std::function<void(RunOptions&)>& change = {}) {
  RunOptions options = options_of(scenario);
  if (change) change(options);
  return run_engine(json_of(scenario, stage, keys), options);
}

std::vector<Scenario> all_scenarios() {
  if (kSanitized) return {{"gpt2-tied", 3, 3, true}, {"llama", 2, 1, false}};
  std::vector<Scenario> scenarios;
  for (const char* model : {"probe", "gpt2", "gpt2-tied", "llama", "llama-tied"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const int accumulation : {1, 3}) {
        for (const bool bf16 : {false, true}) {
          scenarios.push_back({model, ranks, accumulation, bf16});
        }
      }
    }
  }
  return scenarios;
}

class Stages : public ::testing::TestWithParam<Scenario> {};

TEST_P(Stages, AgreeBitForBit) {
  const Scenario& scenario = GetParam();
  std::vector<RunResult> plain;
  for (int stage = 0; stage <= 3; ++stage) plain.push_back(run(scenario, stage));
  EXPECT_GT(plain[0].steps.back().grad_norm, 0.0);
  EXPECT_TRUE(same_bits(plain[0], plain[1])) << "stages 0 and 1";
  EXPECT_TRUE(same_bits(plain[2], plain[3])) << "stages 2 and 3";
  if (scenario.accumulation == 1) {
    EXPECT_TRUE(same_bits(plain[0], plain[2])) << "stages 0 and 2";
    return;
  }
  EXPECT_TRUE(close(plain[0], plain[2], scenario.bf16 ? 1e-2 : 1e-5)) << "stages 0 and 2, rounding";
  for (int stage = 0; stage <= 1; ++stage) {
    const RunResult each = run(scenario, stage, {}, [](RunOptions& options) {
      options.engine.reduce_each_micro_batch = true;
    });
    EXPECT_TRUE(same_bits(plain[2], each)) << "stage " << stage << " reducing each micro-batch";
  }
}

std::string test_name(const ::testing::TestParamInfo<Scenario>& entry) {
  std::string name = name_of(entry.param);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Stages, ::testing::ValuesIn(all_scenarios()), test_name);

/// A knob that must not change a bit.
struct Knob {
  const char* name;
  int lowest_stage;  ///< The first stage it has an effect at.
  Keys keys;
  std::function<void(RunOptions&)> change = {};
};

std::vector<Knob> knobs() {
  std::vector<Knob> all;
  for (const char* size : {"1", "1000", "1e9"})
    all.push_back({"bucket", 0, {concat(R"("reduce_bucket_size": )", size), ""}});
  for (const char* overlap : {"true", "false"}) {
    all.push_back(
        {"overlap", 0, {concat(R"("reduce_bucket_size": 1000, "overlap_comm": )", overlap), ""}});
  }
  for (const char* size : {"0", "1", "1e9"})
    all.push_back({"prefetch", 3, {concat(R"("stage3_prefetch_bucket_size": )", size), ""}});
  for (const char* size : {"0", "20000"}) {
    all.push_back({"max live", 3, {concat(R"("stage3_max_live_parameters": )", size), ""}});
    all.push_back({"reuse", 3, {concat(R"("stage3_max_reuse_distance": )", size), ""}});
  }
  for (const char* size : {"16", "1000", "100000"}) {
    all.push_back(
        {"persistence", 3, {concat(R"("stage3_param_persistence_threshold": )", size), ""}});
  }
  all.push_back({"model persistence",
                 3,
                 {R"("stage3_param_persistence_threshold": 100000,
                     "stage3_model_persistence_threshold": 1000)",
                  ""}});
  for (const char* size : {"0", "1024", "5000", "1e9"})
    all.push_back({"sub-group", 0, {concat(R"("sub_group_size": )", size), ""}});
  all.push_back({"not contiguous", 1, {R"("contiguous_gradients": false)", ""}});
  all.push_back({"round robin", 1, {R"("round_robin_gradients": true)", ""}});
  all.push_back({"sequential", 3, {R"("allgather_sequential": true)", ""}});
  all.push_back({"no reduce-scatter", 1, {R"("reduce_scatter": false)", ""}});
  all.push_back({"one thread more", 0, {}, [](RunOptions& options) { options.threads = 2; }});
  all.push_back({"jitter", 0, {R"("reduce_bucket_size": 1000)", ""}, [](RunOptions& options) {
                   options.jitter_seed = 5;
                   options.steps = 2;
                 }});
  return all;
}

const Scenario kKnobScenarios[] = {{"gpt2-tied", 2, 3, true},
                                   {"gpt2", 4, 1, false},
                                   {"llama-tied", 3, 3, false},
                                   {"llama", 2, 1, true}};

class Knobs : public ::testing::TestWithParam<int> {};

TEST_P(Knobs, ChangeNoBit) {
  const int stage = GetParam();
  for (const Scenario& scenario : std::span(kKnobScenarios).first(kSanitized ? 1 : 4)) {
    SCOPED_TRACE(name_of(scenario));
    const RunResult plain = run(scenario, stage);
    const RunResult two_steps =
        run(scenario, stage, {}, [](RunOptions& options) { options.steps = 2; });
    for (const Knob& knob : knobs()) {
      if (stage < knob.lowest_stage || (kSanitized && stage < 3 && !knob.change)) continue;
      const RunResult changed = run(scenario, stage, knob.keys, knob.change);
      EXPECT_TRUE(same_bits(changed.steps.size() == 2 ? two_steps : plain, changed))
          << knob.name << ": " << knob.keys.zero;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stage, Knobs, ::testing::Range(0, 4));

TEST(Knobs, SecondaryPartitionsChangeNoBit) {
  for (const int accumulation : {1, 3}) {
    const Scenario scenario{"gpt2-tied", 4, accumulation, true};
    const RunResult plain = run(scenario, 3);
    for (const char* ranks : {"2", "4"}) {
      EXPECT_TRUE(
          same_bits(plain, run(scenario, 3, {concat(R"("zero_hpz_partition_size": )", ranks), ""})))
          << "hpZ over " << ranks << ", accumulation " << accumulation;
    }
  }
}

TEST(Knobs, ABudgetThatClipsPrefetchChangesNoBit) {
  const Scenario scenario{"llama", 2, 3, false};
  const RunResult narrow =
      run(scenario, 3, {R"("stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0)", ""});
  const std::int64_t budget = narrow.estimates[0].total();
  const Keys wide{R"("stage3_prefetch_bucket_size": 1e9)", ""};
  const RunResult free = run(scenario, 3, wide);
  EXPECT_GT(free.memory[0].peak, budget) << "the budget must clip something";
  const RunResult clipped =
      run(scenario, 3, wide, [&](RunOptions& options) { options.budget_bytes = budget; });
  EXPECT_LE(clipped.memory[0].peak, budget);
  EXPECT_TRUE(same_bits(narrow, free));
  EXPECT_TRUE(same_bits(narrow, clipped));
}

TEST(Knobs, PrescalingAndPredividingByPowersOfTwoChangeNoBit) {
  if (kSanitized) GTEST_SKIP() << "other values, the same order";
  const Scenario scenario{"gpt2", 4, 3, false};
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult plain = run(scenario, stage);
    EXPECT_TRUE(same_bits(plain, run(scenario, stage, {"", R"("prescale_gradients": true)"})))
        << stage;
    EXPECT_TRUE(same_bits(plain, run(scenario, stage, {"", R"("gradient_predivide_factor": 2.0)"})))
        << stage;
  }
}

/// A MiCS run sums over the ranks of a shard group first, then over the groups: the same numbers
/// added in another order than stage 3 over all ranks does. So MiCS runs are the same bits among
/// themselves and for exact sums, and agree with stage 3 to rounding.
TEST(Mics, IsOneSumInTwoLevels) {
  const Keys mics{R"("mics_shard_size": 2)", ""};
  Scenario probe{"probe", 4, 3, false};
  const auto exact = [](RunOptions& options) {
    options = probe_options(
        {13, 2500, 1025},
        [](int parameter, const Moment& at) {
          return static_cast<float>((at.rank + 1) << (at.micro_batch + parameter));
        },
        4);
  };
  EXPECT_TRUE(same_bits(run(probe, 3, {}, exact), run(probe, 3, mics, exact)));
  EXPECT_TRUE(same_bits(run(probe, 3), run(probe, 3, {R"("mics_shard_size": 4)", ""})));

  for (const bool bf16 : {false, true}) {
    if (kSanitized && !bf16) continue;
    const Scenario nano{"gpt2-tied", 4, 3, bf16};
    const RunResult plain = run(nano, 3, mics);
    EXPECT_TRUE(close(run(nano, 3), plain, bf16 ? 1e-2 : 1e-5));
    for (const char* more : {R"("reduce_bucket_size": 1)", R"("stage3_prefetch_bucket_size": 0)",
                             R"("sub_group_size": 1024)", R"("overlap_comm": false)"}) {
      EXPECT_TRUE(same_bits(plain, run(nano, 3, {concat(mics.zero, ", ", more), ""}))) << more;
    }
  }
}

/// Other factorisations of one global batch agree to rounding.
TEST(Ranks, OneGlobalBatchAgreesHoweverItIsSplit) {
  if (kSanitized) GTEST_SKIP() << "other values, the same order";
  for (const char* model : {"gpt2", "llama-tied"}) {
    const RunResult reference = run({model, 1, 12, false}, 0);
    for (const auto& [ranks, accumulation] : {std::pair{2, 6}, {3, 4}, {4, 3}}) {
      for (const int stage : {0, 3}) {
        EXPECT_TRUE(close(reference, run({model, ranks, accumulation, false}, stage), 1e-5))
            << model << ", " << ranks << " ranks, stage " << stage;
      }
    }
  }
}

/// A micro-batch in which nothing counts has the gradient zero, and is one of those that the mean
/// is over: the step is that of the others, of half the size where there are two.
TEST(Ranks, AMicroBatchWithoutTargetsCountsInTheMean) {
  if (kSanitized) GTEST_SKIP() << "other values, the same order";
  const auto json = [](int stage, int accumulation, double lr) {
    return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                  accumulation, R"(, "gradient_clipping": 0, "zero_allow_untested_optimizer": true,
                  "optimizer": {"type": "SGD", "params": {"lr": )",
                  lr,
                  R"(}}, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
                  stage, "}}");
  };
  const auto options = [](int ranks, bool any) {
    RunOptions result = nano_options(nano_gpt2(true), ranks, 1);
    result.steps = 1;
    result.batch = [any](const Moment& at) {
      TokenBatch batch = nano_batch({0, at.step, 0}, 1, 1, 2);
      if (!any || at.rank + at.micro_batch > 0)
        std::fill(batch.targets.begin(), batch.targets.end(), -100);
      return batch;
    };
    return result;
  };
  const RunResult alone = run_engine(json(0, 1, 0.125), options(1, true));
  const RunResult nothing = run_engine(json(0, 1, 0.125), options(1, false));
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult ranks = run_engine(json(stage, 1, 0.25), options(2, true));
    const RunResult window = run_engine(json(stage, 2, 0.25), options(1, true));
    const RunResult idle = run_engine(json(stage, 2, 0.25), options(2, false));
    for (const auto& [name, state] : alone.state) {
      EXPECT_TRUE(ranks.state.at(name).value == state.value) << name << ", stage " << stage;
      EXPECT_TRUE(window.state.at(name).value == state.value) << name << ", stage " << stage;
      EXPECT_TRUE(idle.state.at(name).value == nothing.state.at(name).value) << name;
      for (const float gradient : idle.gradients[0].at(name)) ASSERT_EQ(gradient, 0.0f) << name;
    }
    EXPECT_EQ(ranks.steps[0].grad_norm, alone.steps[0].grad_norm / 2);
  }
}

}  // namespace
}  // namespace zero3d::test
