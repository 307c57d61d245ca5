// Small cases drawn from public reports of bugs in other engines, with numbers computed by hand
// from the textbook formulas. exp_avg after the first step is 0.1 times the averaged gradient.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "zero3d/core/text.h"
#include "zero3d/models/gpt2.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

/// Adam with lr 0.1 and no decay, micro-batches of 1 and what a case adds.
std::string base(int stage, const std::string& top = "", const std::string& zero = "",
                 int accumulation = 1, int micro_batch = 1) {
  return concat(R"({"train_micro_batch_size_per_gpu": )", micro_batch,
                R"(, "gradient_accumulation_steps": )", accumulation,
                R"(, "optimizer": {"type": "Adam", "params": {"lr": 0.1, "betas": [0.9, 0.999],
          "eps": 1e-8, "weight_decay": 0}})",
                top.empty() ? "" : ", ", top,
                R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
                stage, zero.empty() ? "" : ", ", zero, "}}");
}

std::vector<float> values(const RunResult& result, const std::string& name) {
  return ParameterState::floats(result.state.at(name).value);
}

std::vector<float> moment(const RunResult& result, const std::string& name, std::size_t index) {
  return ParameterState::floats(result.state.at(name).states.at(index));
}

void expect_all(const std::vector<float>& actual, float expected, float tolerance) {
  EXPECT_FALSE(actual.empty());
  for (const float value : actual) EXPECT_NEAR(value, expected, tolerance);
}

TEST(StagesAgree, WithAccumulationOnExactSums) {
  for (const int ranks : {2, 4}) {
    RunOptions options = probe_options(
        {13, 7, 64, 1},
        [](int parameter, const Moment& at) {
          return static_cast<float>((at.rank + 1) << (parameter + at.micro_batch));
        },
        ranks);
    options.steps = 8;
    const std::string top = R"("gradient_clipping": 0)";
    const RunResult reference = run_engine(base(0, top, "", 4), options);
    for (const auto& [name, gradient] : reference.gradients.back()) {
      const int parameter = name.back() - '0';  // the mean of rank + 1, of 1 2 4 8, times 2^i
      expect_all(gradient, 0.5f * static_cast<float>(ranks + 1) * 3.75f * std::exp2f(parameter), 0);
    }
    for (int stage = 1; stage <= 3; ++stage)
      EXPECT_TRUE(same_bits(reference, run_engine(base(stage, top, "", 4), options))) << stage;
  }
}

TEST(StagesAgree, WithTiedWeightsAndAccumulation) {
  const auto json = [](int stage, int accumulation) {
    return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                  accumulation,
                  R"(, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "zero_optimization":
            {"stage3_param_persistence_threshold": 0, "stage": )",
                  stage, "}}");
  };
  RunOptions options = nano_options(nano_gpt2(true), 2, 2);
  options.steps = 8;
  std::vector<RunResult> runs;
  for (int stage = 0; stage <= 3; ++stage) runs.push_back(run_engine(json(stage, 2), options));
  RunOptions alone = nano_options(nano_gpt2(true), 1, 4);
  alone.steps = 8;
  const RunResult reference = run_engine(json(0, 4), alone);
  EXPECT_TRUE(same_bits(runs[0], runs[1]));
  EXPECT_TRUE(same_bits(runs[2], runs[3]));
  for (std::size_t step = 0; step < 8; ++step) {
    const double loss = runs[0].steps[step].loss;
    EXPECT_NEAR(runs[2].steps[step].loss, loss, 1e-6 * loss) << step;
    EXPECT_NEAR(reference.steps[step].loss, loss, 1e-5 * loss) << step;
  }
}

TEST(Accumulation, TheLastMicroBatchIsInTheAverage) {
  const RunOptions options = [] {
    RunOptions result = probe_options(
        {4}, [](int, const Moment& at) { return at.rank == 0 ? 1.0f : 3.0f; }, 2);
    result.steps = 1;
    return result;
  }();
  const std::string top = R"("bf16": {"enabled": true}, "gradient_clipping": 0,
                             "data_types": {"grad_accum_dtype": "fp32"})";
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto& [micro, accumulation] : {std::pair{1, 2}, {2, 1}}) {
      const RunResult result = run_engine(base(stage, top, "", accumulation, micro), options);
      expect_all(result.gradients[0].at("p0"), 2.0f, 0);
      expect_all(moment(result, "p0", 0), 0.2f, 1e-7f);
      EXPECT_EQ(result.steps[0].grad_norm, 4.0);
    }
  }
}

TEST(Accumulation, EveryMicroBatchOfEveryStepIsInTheAverage) {
  RunOptions options = probe_options(
      {4}, [](int, const Moment& at) { return 1.0f + at.micro_batch; }, 2);
  const std::string top = R"("gradient_clipping": 0)";
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult result = run_engine(base(stage, top, "", 4), options);
    ASSERT_EQ(result.steps.size(), 3u);
    for (std::size_t step = 0; step < 3; ++step) {
      expect_all(result.gradients[step].at("p0"), 2.5f, 0);
      EXPECT_EQ(result.steps[step].grad_norm, 5.0);
    }
    // The same window by hand: accumulation 1 in the configuration, four backwards of a quarter
    // each, and a boundary that the caller sets.
    RunOptions manual = probe_options(
        {4}, [](int, const Moment& at) { return 0.25f * (1.0f + at.micro_batch); }, 2);
    manual.body = [](Engine& engine, Module& module, int) {
      const TokenBatch batch(1, 1);
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < 4; ++micro) {
          static_cast<ProbeModule&>(module).clock = {step, micro};
          engine.set_gradient_accumulation_boundary(micro == 3);
          engine.forward(batch.view());
          engine.backward();
          engine.step();
        }
        EXPECT_EQ(engine.get_global_grad_norm(), 5.0);
      }
      EXPECT_EQ(engine.global_steps(), 3);
    };
    EXPECT_TRUE(same_state(result.state, run_engine(base(stage, top), manual).state)) << stage;
  }
}

TEST(SmallParameters, EmptyAndTinyOnesTrainAtEveryStage) {
  const std::vector<std::pair<std::vector<std::int64_t>, int>> shapes = {
      {{8, 0, 24}, 2}, {{8, 24, 0}, 2}, {{0, 8}, 2}, {{3}, 4}, {{1}, 4}, {{1}, 1}};
  for (const auto& [sizes, ranks] : shapes) {
    RunOptions options = probe_options(
        sizes,
        [](int parameter, const Moment& at) { return static_cast<float>(at.rank + parameter); },
        ranks);
    const RunResult reference = run_engine(base(0), options);
    for (int stage = 1; stage <= 3; ++stage) {
      EXPECT_TRUE(same_bits(reference, run_engine(base(stage), options)))
          << "stage " << stage << ", " << sizes.size() << " parameters, " << ranks << " ranks";
    }
  }
}

TEST(SmallParameters, AnEmptyOneKeepsItsShape) {
  const auto blocks = [](int) {
    const auto one = [](const ProbeClock&) { return 1.0f; };
    return std::vector<ProbeBlockSpec>{{{probe_parameter("full", Shape{4, 4}, one)}},
                                       {{probe_parameter("empty", Shape{0, 4}, one)}}};
  };
  for (int stage = 0; stage <= 3; ++stage) {
    RunOptions options = probe_options(blocks, 2);  // its blocks check the shapes of their views
    options.after = [](Engine& engine, int) {
      int seen = 0;
      engine.model().for_each_parameter([&](const ParameterSpec& spec, const ConstView& value) {
        EXPECT_EQ(value.shape(), spec.name == "empty" ? (Shape{0, 4}) : (Shape{4, 4}));
        ++seen;
      });
      EXPECT_EQ(seen, 2);
    };
    run_engine(base(stage), options);
  }
}

/// Delays a random sixteenth of the collectives by up to 5 ms, on their streams.
class RandomDelays final : public detail::ForwardingCommunicator {
 public:
  RandomDelays(std::shared_ptr<Communicator> inner, unsigned seed)
      : ForwardingCommunicator(std::move(inner)), random_(seed) {}
  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    if (random_() % 16 == 0) {
      const std::chrono::microseconds time(random_() % 5000);
      stream.host_task("delay", std::initializer_list<Access>{},
                       [time] { std::this_thread::sleep_for(time); });
    }
    inner_->reduce_scatter(stream, segments, options);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<RandomDelays>(inner_->split(color, key),
                                          static_cast<unsigned>(random_()));
  }

 private:
  std::minstd_rand random_;
};

TEST(Overlap, ChangesNoValueUnderRandomDelays) {
  const std::vector<std::int64_t> sizes(9, 16);
  RunOptions options = probe_options(
      sizes,
      [](int parameter, const Moment& at) {
        return static_cast<float>((at.rank + 1) << parameter);
      },
      2);
  options.steps = kSanitized ? 50 : 200;
  options.wrap = [](std::unique_ptr<Communicator> world) {
    const auto seed = static_cast<unsigned>(world->rank() + 11);
    return std::make_unique<RandomDelays>(std::move(world), seed);
  };
  const auto zero = [](const char* overlap) {
    return concat(R"("reduce_bucket_size": 32, "overlap_comm": )", overlap);
  };
  const RunResult overlapped = run_engine(base(2, "", zero("true")), options);
  const RunResult serial = run_engine(base(2, "", zero("false")), options);
  EXPECT_TRUE(same_bits(serial, overlapped));
  for (const RunResult* result : {&overlapped, &serial}) {
    for (const auto& gradients : result->gradients) {
      for (int parameter = 0; parameter < 9; ++parameter)
        expect_all(gradients.at(concat("p", parameter)), 1.5f * std::exp2f(parameter), 0);
    }
  }
}

/// A block with a parameter that no output depends on, passed by.
class Unused final : public Block {
 public:
  std::string name() const override { return "unused"; }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = "unused";
    spec.shape = Shape{1500};
    spec.initial = constant_values(1.0f);
    return {spec};
  }
  Values forward(BlockContext&, Values inputs, Saved&) override { return inputs; }
  Values backward_inputs(BlockContext&, Values gradients, Saved&) override { return gradients; }
  void backward_weights(BlockContext&, Saved&) override {}
};

class WithUnused final : public Module {
 public:
  WithUnused() {
    const ModelConfig config = nano_gpt2(false);
    blocks_ = make_gpt2_blocks(config, {1, 1});
    blocks_.insert(blocks_.begin() + 2, std::make_unique<Unused>());
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

/// The rule for a parameter that takes no part in the loss: its gradient is zero, so its moments
/// stay zero and decoupled weight decay applies, at every stage alike.
TEST(FrozenAndUnused, FrozenStayAndUnusedOnlyDecay) {
  const auto json = [](int stage) {
    return concat(
        R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
            "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
        stage, "}}");
  };
  RunOptions options = nano_options(nano_gpt2(false), 2, 1);
  options.make_module = [](int) { return std::make_unique<WithUnused>(); };
  options.engine.adjust = [](ParameterSpec& spec) {
    if (spec.name.find("wte") != std::string::npos) spec.frozen = true;
  };
  RunOptions untouched = options;
  untouched.steps = 0;
  const RunResult before = run_engine(json(0), untouched);
  const RunResult reference = run_engine(json(0), options);
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult result = run_engine(json(stage), options);
    EXPECT_TRUE(same_bits(reference, result)) << stage;
    int frozen = 0;
    for (const auto& [name, state] : result.state) {
      if (name.find("wte") == std::string::npos) continue;
      EXPECT_EQ(state.value, before.state.at(name).value);
      EXPECT_TRUE(state.states.empty() && state.master.empty() && state.gradient.empty()) << name;
      ++frozen;
    }
    EXPECT_EQ(frozen, 1);
    float decayed = 1.0f;
    for (int step = 0; step < 3; ++step) decayed *= 1.0f - 0.01f * 0.1f;
    expect_all(values(result, "unused"), decayed, 1e-6f);
    expect_all(moment(result, "unused", 0), 0, 0);
    expect_all(moment(result, "unused", 1), 0, 0);
  }
}

TEST(Precision, SmallGradientsSurviveAccumulation) {
  RunOptions options = probe_options(
      {1}, [](int, const Moment& at) { return at.micro_batch == 0 ? 1.0f : std::exp2f(-9); }, 1);
  options.steps = 1;
  std::string line;
  options.after = [&](Engine& engine, int) { line = engine.model().plan().precision_line(); };
  for (int stage = 0; stage <= 3; ++stage) {
    const auto gradient = [&](const std::string& top) {
      return run_engine(base(stage, concat(R"("bf16": {"enabled": true})", top), "", 16), options)
          .gradients[0]
          .at("p0");
    };
    EXPECT_EQ(gradient(""), std::vector<float>{0.0643310546875f});
    EXPECT_NE(line.find("accumulation fp32"), std::string::npos) << line;
    EXPECT_EQ(gradient(R"(, "data_types": {"grad_accum_dtype": "bf16"})"),
              std::vector<float>{0.0625f});
    EXPECT_NE(line.find("accumulation bf16"), std::string::npos) << line;
  }
}

struct Poison {
  const char* kind;
  std::function<float(int rank, std::int64_t element)> value;  ///< 0: leave it.
};

TEST(Precision, ANonFiniteGradientOfOneRankSkipsTheStep) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Poison poisons[] = {
      {"inf", [=](int rank, std::int64_t i) { return rank == 1 && i == 2 ? inf : 0.0f; }},
      {"NaN", [=](int rank, std::int64_t i) { return rank == 1 && i == 2 ? nan : 0.0f; }},
      {"inf",
       [=](int rank, std::int64_t i) { return rank == 1 && i < 2 ? (i == 0 ? inf : -inf) : 0.0f; }},
  };
  const char* precisions[] = {"", R"(, "bf16": {"enabled": true})",
                              R"(, "fp16": {"enabled": true, "loss_scale": 8})"};
  for (const Poison& poison : poisons) {
    for (const char* precision : precisions) {
      for (const char* clipping : {"0", "1.0"}) {
        for (int stage = 0; stage <= 3; ++stage) {
          SCOPED_TRACE(concat(poison.kind, precision, ", clipping ", clipping, ", stage ", stage));
          const auto blocks = [&](int rank) {
            ProbeParameter parameter = probe_parameter("p0", Shape{4}, {});
            parameter.gradient = [poison, rank](const ProbeClock& at, std::int64_t i) {
              const float bad = at.step == 1 ? poison.value(rank, i) : 0.0f;
              return bad != 0.0f ? bad : static_cast<float>(rank + 1);
            };
            return std::vector<ProbeBlockSpec>{{{parameter}}};
          };
          const std::string json =
              base(stage, concat(R"("gradient_clipping": )", clipping, precision,
                                 R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_type":
                               "linear", "warmup_num_steps": 10, "warmup_max_lr": 1.0}})"));
          RunOptions options = probe_options(blocks, 2);
          const auto after = [&](int steps) {
            options.steps = steps;
            return run_engine(json, options);
          };
          const LogCapture log;
          const RunResult one = after(1);
          EXPECT_TRUE(log.with("skipped").empty());
          const RunResult two = after(2);
          ASSERT_EQ(log.with("skipped").size(), 1u);
          const std::string line = log.with("skipped")[0];
          for (const char* part :
               {"step 2 ", "shard of rank 0", "loss of rank 1", "p0", poison.kind})
            EXPECT_NE(line.find(part), std::string::npos) << line;
          EXPECT_EQ(line.find("loss scale") != std::string::npos, false) << line;
          for (const char* name : {"p0"}) {
            EXPECT_EQ(one.state.at(name).value, two.state.at(name).value);
            EXPECT_EQ(one.state.at(name).master, two.state.at(name).master);
            EXPECT_EQ(one.state.at(name).states, two.state.at(name).states);
          }
          EXPECT_TRUE(two.steps[1].skipped);
          EXPECT_EQ(two.steps[1].grad_norm, std::numeric_limits<double>::infinity());

          int skipped = -1;
          options.after = [&](Engine& engine, int rank) {
            if (rank == 0) skipped = static_cast<int>(engine.skipped_steps());
          };
          const RunResult four = after(4);
          EXPECT_EQ(skipped, 1);
          EXPECT_EQ(four.steps[1].lr, four.steps[2].lr) << "the schedule does not advance";
          EXPECT_LT(four.steps[2].lr, four.steps[3].lr);
          for (const std::size_t step : {0u, 2u, 3u}) {
            EXPECT_FALSE(four.steps[step].skipped);
            EXPECT_EQ(four.steps[step].grad_norm, 3.0);  // 4 elements of 1.5
          }
        }
      }
    }
  }
}

const float kThreeGradients[] = {0.1f, -0.2f, 0.3f};

RunOptions three_gradients(const std::vector<std::int64_t>& sizes) {
  return probe_options(
      sizes, [](int, const Moment& at) { return kThreeGradients[at.step]; }, 1);
}

std::string adam(int stage, const char* type, const char* params, const std::string& zero = "") {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "optimizer": {"type": ")",
      type, R"(", "params": {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8)", params,
      R"(}}, "zero_optimization": {"stage": )", stage, zero.empty() ? "" : ", ", zero, "}}");
}

TEST(Optimizer, WhoDecaysHow) {
  struct Row {
    const char* type;
    const char* params;
    float expected[3];
    const char* says;
  };
  const Row rows[] = {
      {"AdamW", R"(, "weight_decay": 0.1)", {0.890000f, 0.917710f, 0.874209f}, "decoupled"},
      {"Adam", R"(, "weight_decay": 0.1)", {0.890000f, 0.917710f, 0.874209f}, "decoupled"},
      {"Adam",
       R"(, "weight_decay": 0.1, "adam_w_mode": false)",
       {0.900000f, 0.877170f, 0.813161f},
       "L2"},
      {"AdamW", R"(, "weight_decay": 0)", {0.900000f, 0.936610f, 0.902286f}, ""},
      {"Adam", R"(, "weight_decay": 0)", {0.900000f, 0.936610f, 0.902286f}, ""},
      {"Adam",
       R"(, "weight_decay": 0, "adam_w_mode": false)",
       {0.900000f, 0.936610f, 0.902286f},
       ""}};
  for (const Row& row : rows) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (int step = 1; step <= 3; ++step) {
        RunOptions options = three_gradients({1});
        options.steps = step;
        options.after = [&](Engine& engine, int) {
          std::string lines;
          for (const std::string& line : engine.model().setup().description()) lines += line;
          EXPECT_NE(lines.find(row.says), std::string::npos) << lines;
        };
        expect_all(values(run_engine(adam(stage, row.type, row.params), options), "p0"),
                   row.expected[step - 1], 1e-6f);
      }
    }
  }
}

TEST(Optimizer, SubGroupsShareOneStepCount) {
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{8, 8, 8}, {3000, 3000, 3000}}) {
    for (const char* size : {"7", "8", "1000", "1024", "1e9"}) {
      const std::string zero = concat(R"("offload_optimizer": {"device": "cpu"},
                                         "stage3_param_persistence_threshold": 0,
                                         "sub_group_size": )",
                                      size);
      const RunResult result =
          run_engine(adam(3, "Adam", R"(, "weight_decay": 0)", zero), three_gradients(sizes));
      const float first = values(result, "p0")[0];
      EXPECT_NEAR(first, 0.9022863f, 1e-6f);
      for (const char* name : {"p0", "p1", "p2"}) expect_all(values(result, name), first, 0);
    }
  }
}

}  // namespace
}  // namespace zero3d::test
