// Small cases of public reports of bugs, with the state off the device: numbers computed by hand,
// sizes that fit no block, one place against the other.
#include <gtest/gtest.h>

#include <limits>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

/// Adam with lr 0.1; `top` and `zero` are members, each with a comma behind it.
std::string adam(int stage, const std::string& top, const std::string& zero, int accumulation = 1,
                 const char* type = "Adam", const char* params = R"("weight_decay": 0)") {
  return concat(R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )",
                accumulation, ", ", top, R"("optimizer": {"type": ")", type,
                R"(", "params": {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, )", params,
                R"(}}, "zero_optimization": {"stage3_param_persistence_threshold": 0, )", zero,
                R"("stage": )", stage, "}}");
}

std::string to_cpu(bool parameters = false) {
  return concat(R"("offload_optimizer": {"device": "cpu"}, )",
                parameters ? R"("offload_param": {"device": "cpu"}, )" : "");
}

std::string to_drive(const TemporaryFolder& folder, bool parameters = false) {
  const std::string place =
      concat(R"("device": "nvme", "nvme_path": ")", folder.file("nvme"), "\"");
  return concat(R"("offload_optimizer": {)", place, "}, ",
                parameters ? concat(R"("offload_param": {)", place, R"(, "max_in_cpu": 0}, )")
                           : std::string());
}

std::vector<float> values(const RunResult& result, const std::string& name) {
  return ParameterState::floats(result.state.at(name).value);
}

void expect_all(const std::vector<float>& actual, float expected, float tolerance) {
  EXPECT_FALSE(actual.empty());
  for (const float value : actual) EXPECT_NEAR(value, expected, tolerance);
}

/// OFF-01: every micro-batch of every step is in the average.
TEST(OffloadCases, KeepAllMicroBatches) {
  const TemporaryFolder folder;
  const RunOptions options = probe_options(
      {4}, [](int, const Moment& at) { return 1.0f + static_cast<float>(at.micro_batch); }, 2);
  for (int stage = 1; stage <= 3; ++stage) {
    for (const std::string& place : {to_cpu(), to_drive(folder)}) {
      const RunResult result =
          run_engine(adam(stage, R"("gradient_clipping": 0, )", place, 4), options);
      ASSERT_EQ(result.steps.size(), 3u);
      for (std::size_t step = 0; step < 3; ++step) {
        expect_all(result.gradients[step].at("p0"), 2.5f, 0);
        EXPECT_EQ(result.steps[step].grad_norm, 5.0);
      }
      RunOptions manual = probe_options(
          {4},
          [](int, const Moment& at) { return 0.25f * (1.0f + static_cast<float>(at.micro_batch)); },
          2);
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
      };
      const RunResult by_hand =
          run_engine(adam(stage, R"("gradient_clipping": 0, )", place), manual);
      EXPECT_TRUE(same_state(result.state, by_hand.state)) << stage;
    }
  }
}

/// NVME-01: tails of tensors that are no multiple of a block.
TEST(OffloadCases, SizesThatFitNoBlock) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2}) {
    for (const char* precision : {"", R"("bf16": {"enabled": true}, )"}) {
      for (const int block : {4096, 1 << 20}) {
        RunOptions options = probe_options(
            {1, 129, 1000, 4097, 262145},
            [](int parameter, const Moment& at) {
              return 0.01f * static_cast<float>(1 + parameter + at.rank);
            },
            ranks);
        options.steps = 5;
        const std::string top = concat(precision, R"("aio": {"block_size": )", block, "}, ");
        const RunResult cpu = run_engine(adam(3, top, to_cpu(true)), options);
        const RunResult drive = run_engine(adam(3, top, to_drive(folder, true)), options);
        EXPECT_TRUE(same_bits(cpu, drive)) << ranks << precision << block;
      }
    }
  }
}

/// NVME-02: small tensors reach the optimizer wherever it is.
TEST(OffloadCases, EveryPlaceGivesTheSame) {
  const TemporaryFolder folder;
  for (const char* tile : {"1000", "1e9"}) {
    const auto zero = [&](const std::string& place) {
      return concat(place, R"("sub_group_size": )", tile, ", ");
    };
    RunOptions options = probe_options(
        {100, 300000}, [](int, const Moment& at) { return 1.0f + static_cast<float>(at.step); }, 1);
    options.steps = 10;
    const RunResult none = run_engine(adam(3, "", zero(""), 2), options);
    for (const float value : values(none, "p0")) EXPECT_LT(value, 0.5f) << "it moved";
    EXPECT_TRUE(same_bits(none, run_engine(adam(3, "", zero(to_cpu(true)), 2), options)));
    EXPECT_TRUE(same_bits(none, run_engine(adam(3, "", zero(to_drive(folder, true)), 2), options)));
    RunOptions nano = nano_options(nano_gpt2(true), 1, 2, 1);
    nano.steps = 10;
    const RunResult whole = run_engine(adam(3, "", zero(""), 2), nano);
    EXPECT_TRUE(same_bits(whole, run_engine(adam(3, "", zero(to_cpu(true)), 2), nano)));
    EXPECT_TRUE(same_bits(whole, run_engine(adam(3, "", zero(to_drive(folder, true)), 2), nano)));
  }
}

/// OPT-01.
TEST(OffloadCases, WhoDecaysHow) {
  struct Row {
    const char* type;
    const char* params;
    float expected;
  };
  const float gradients[] = {0.1f, -0.2f, 0.3f};
  const RunOptions options = probe_options(
      {1}, [&](int, const Moment& at) { return gradients[at.step]; }, 1);
  for (const Row& row : {Row{"AdamW", R"("weight_decay": 0.1)", 0.874209f},
                         Row{"Adam", R"("weight_decay": 0.1)", 0.874209f},
                         Row{"Adam", R"("weight_decay": 0.1, "adam_w_mode": false)", 0.813161f},
                         Row{"AdamW", R"("weight_decay": 0)", 0.902286f},
                         Row{"Adam", R"("weight_decay": 0, "adam_w_mode": false)", 0.902286f}}) {
    for (int stage = 1; stage <= 3; ++stage) {
      const RunResult result = run_engine(
          adam(stage, R"("gradient_clipping": 0, )", to_cpu(), 1, row.type, row.params), options);
      expect_all(values(result, "p0"), row.expected, 1e-6f);
    }
  }
}

/// ZERO-03.
TEST(OffloadCases, EmptyAndTinyParametersTrain) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::vector<std::int64_t>, int>> shapes = {
      {{8, 0, 24}, 2}, {{0, 8}, 2}, {{3}, 4}, {{1}, 4}, {{1}, 1}};
  for (const auto& [sizes, ranks] : shapes) {
    const RunOptions options = probe_options(
        sizes,
        [](int parameter, const Moment& at) { return static_cast<float>(at.rank + parameter); },
        ranks);
    const RunResult reference = run_engine(adam(0, "", ""), options);
    for (int stage = 1; stage <= 3; ++stage) {
      EXPECT_TRUE(same_bits(reference, run_engine(adam(stage, "", to_cpu(true)), options)))
          << stage << ", " << sizes.size() << " parameters, " << ranks << " ranks";
      EXPECT_TRUE(
          same_bits(reference, run_engine(adam(stage, "", to_drive(folder, true)), options)))
          << stage << " nvme, " << sizes.size() << " parameters, " << ranks << " ranks";
    }
  }
}

/// PREC-02: one inf on one rank skips the step, and nothing moves.
TEST(OffloadCases, ANonFiniteGradientSkipsTheStep) {
  const TemporaryFolder folder;
  const LogCapture log;
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const char* precision : {"", R"("bf16": {"enabled": true}, )",
                                  R"("fp16": {"enabled": true, "loss_scale": 8}, )"}) {
      for (const std::string& place : {to_cpu(), to_drive(folder)}) {
        const std::string json = adam(2, concat(precision, R"("gradient_clipping": 1.0, )"), place);
        RunOptions options = probe_options(
            {4}, [bad](int, const Moment& at) { return at.rank == 1 && at.step == 1 ? bad : 1.5f; },
            2);
        const auto after = [&](int steps) {
          options.steps = steps;
          return run_engine(json, options);
        };
        const RunResult one = after(1);
        const RunResult two = after(2);
        const RunResult four = after(4);
        EXPECT_TRUE(two.steps[1].skipped) << json;
        EXPECT_EQ(one.state.at("p0").value, two.state.at("p0").value) << json;
        EXPECT_EQ(one.state.at("p0").states, two.state.at("p0").states);
        for (const std::size_t step : {0u, 2u, 3u}) {
          EXPECT_FALSE(four.steps[step].skipped);
          EXPECT_EQ(four.steps[step].grad_norm, 3.0);  // 4 elements of 1.5
        }
      }
    }
  }
}

}  // namespace
}  // namespace zero3d::test
