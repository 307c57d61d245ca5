// Parameters as the API shows them: whole ones written by a rank, gradients that a block only asks
// for, tied parameters.
#include <gtest/gtest.h>

#include "api.h"
#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

TEST(WithParameters, OneRankWritesAndMastersFollow) {
  constexpr char kName[] = "transformer.h.1.mlp.c_fc.weight";
  for (const bool bf16 : {false, true}) {
    for (const char* threshold : {"0", "100000"}) {
      for (int stage = 0; stage <= 3; ++stage) {
        SCOPED_TRACE(concat("stage ", stage, ", bf16 ", bf16, ", persistence ", threshold));
        const std::string json =
            concat(R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW",
                       "params": {"lr": 0.01}}, "bf16": {"enabled": )",
                   bf16 ? "true" : "false", R"(}, "zero_optimization": {"stage": )", stage,
                   R"(, "stage3_param_persistence_threshold": )", threshold, "}}");
        const RunResult untouched = run_engine(json, nano(1));
        RunOptions options = nano(1);
        options.after = [&](Engine& engine, int rank) {
          engine.model().with_parameters({kName}, -1, [&](const ParameterSpec& spec, View view) {
            EXPECT_EQ(spec.name, kName);
            EXPECT_EQ(view.shape(), (Shape{16, 64}));
          });
          engine.model().with_parameters({kName}, 1, [&](const ParameterSpec&, View view) {
            for (std::int64_t i = 0; i < view.numel(); ++i) {
              const float value = rank == 1 ? 0.5f + static_cast<float>(i % 7) : -1.0f;
              if (bf16) {
                view.as<zero3d::bf16>()[i] = to_bf16(value);
              } else {
                view.as<float>()[i] = value;
              }
            }
          });
        };
        const RunResult written = run_engine(json, options);
        ModelState expected = untouched.state;
        ParameterState& changed = expected.at(kName);
        const std::size_t count = 16 * 64;
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = 0.5f + static_cast<float>(i % 7);
        const auto bytes_of = [](const auto& vector) {
          const auto* data = reinterpret_cast<const std::byte*>(vector.data());
          return std::vector<std::byte>(data, data + vector.size() * sizeof(vector[0]));
        };
        if (bf16) {
          std::vector<zero3d::bf16> halves;
          for (const float value : values) halves.push_back(to_bf16(value));
          changed.value = bytes_of(halves);
          changed.master = bytes_of(values);
        } else {
          changed.value = bytes_of(values);
        }
        EXPECT_TRUE(same_state(expected, written.state));
      }
    }
  }
}

TEST(WithParameters, TrainingGoesOnFromWhatWasWritten) {
  for (const char* more : {"", R"("zero_hpz_partition_size": 2)"}) {
    std::vector<double> losses;
    for (const int stage : {0, 3}) {
      RunOptions options = nano(1);
      options.body = [&](Engine& engine, Module&, int rank) {
        double loss = 0;
        for (int step = 0; step < 2; ++step) {
          const TokenBatch batch = batch_at(rank, step, 0, 1);
          const MicroBatch view = batch.view();
          loss = engine.train_batch({&view, 1}).loss;
          engine.model().with_parameters({"transformer.wte.weight", "transformer.ln_f.weight"}, 0,
                                         [&](const ParameterSpec&, View values) {
                                           for (std::int64_t i = 0; i < values.numel(); ++i)
                                             values.as<float>()[i] *= 1.5f;
                                         });
        }
        if (rank == 0) losses.push_back(loss);
      };
      run_engine(json_of(stage, 1, "", stage == 3 ? more : ""), options);
    }
    EXPECT_EQ(losses[0], losses[1]);
  }
}

TEST(WithParameters, AnUnknownNameIsAnError) {
  RunOptions options = nano(1);
  options.body = [](Engine& engine, Module&, int) {
    expect_error(
        [&] { engine.model().with_parameters({"nobody"}, -1, [](const ParameterSpec&, View) {}); },
        "no parameter named nobody");
  };
  run_engine(json_of(3, 1), options);
}

/// Buffers hold what an earlier micro-batch wrote there.
TEST(Gradients, OnesThatABlockOnlyAsksForAreZero) {
  for (const bool bf16 : {false, true}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const auto blocks = [](int) {
        ProbeParameter sometimes =
            probe_parameter("sometimes", Shape{1500}, [](const ProbeClock&) { return 3.0f; });
        sometimes.takes_part = [](const ProbeClock& at) { return at.step == 0; };
        const ProbeParameter always =
            probe_parameter("always", Shape{7}, [](const ProbeClock&) { return 1.0f; });
        return std::vector<ProbeBlockSpec>{{{sometimes}}, {{always, sometimes}}};
      };
      const RunResult result = run_engine(
          json_of(stage, 2, bf16 ? R"("bf16": {"enabled": true})" : ""), probe_options(blocks, 2));
      for (std::size_t step = 0; step < 3; ++step) {
        for (const float value : result.gradients[step].at("sometimes"))
          ASSERT_EQ(value, step == 0 ? 6.0f : 0.0f) << "stage " << stage << ", step " << step;
        for (const float value : result.gradients[step].at("always")) ASSERT_EQ(value, 1.0f);
      }
    }
  }
}

TEST(Tied, GradientsOfAllUsersAddUp) {
  for (const bool adds : {false, true}) {
    for (const bool bf16 : {false, true}) {
      for (const int accumulation : {1, 2}) {
        for (int stage = 0; stage <= 3; ++stage) {
          SCOPED_TRACE(concat("adds ", adds, ", bf16 ", bf16, ", accumulation ", accumulation,
                              ", stage ", stage));
          const auto blocks = [&](int) {
            const auto tied = [&](float c) {
              ProbeParameter parameter =
                  probe_parameter("tied", Shape{1500}, [c](const ProbeClock&) { return c; });
              parameter.spec.adds_gradient = adds;
              return parameter;
            };
            const auto own = [](const char* name) {
              return probe_parameter(name, Shape{7}, [](const ProbeClock&) { return 1.0f; });
            };
            return std::vector<ProbeBlockSpec>{
                {{tied(3.0f), own("a")}}, {{own("b")}}, {{own("c"), tied(5.0f)}}};
          };
          const RunResult result =
              run_engine(json_of(stage, accumulation,
                                 bf16 ? R"("gradient_clipping": 0, "bf16": {"enabled": true})"
                                      : R"("gradient_clipping": 0)"),
                         probe_options(blocks, 2));
          for (const auto& gradients : result.gradients) {
            for (const float value : gradients.at("tied")) ASSERT_EQ(value, 8.0f);
            for (const float value : gradients.at("b")) ASSERT_EQ(value, 1.0f);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zero3d::test
