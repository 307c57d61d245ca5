// Pipelines with all that a run may ask for at once: ties across stages, precisions, optimizers,
// offload, recomputation, groups of shards. Each gives the bits of the same run without stages,
// or, where sums are taken in another order, of every other schedule and tier on its mesh.
#include <gtest/gtest.h>

#include "pipelines.h"
#include "zero3d/core/error.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

using enum PipelineSchedule;

void expect_bits_without_stages(const PipelineRun& run, const ModelConfig& model) {
  SCOPED_TRACE(run.text());
  const RunResult result = run_pipeline(run, model);
  EXPECT_TRUE(same_bits(run_pipeline(run.without_stages(), model), result));
  expect_planned_memory(result);
}

/// The table is in the first and the last stage: both copies are the same after every step (the
/// collector compares them), and sums are one order on a mesh.
TEST(PipelineZero, TiedTablesAreOneParameter) {
  const ModelConfig model = deep_nano(true, 4);
  for (const int dp : {1, 2}) {
    if (kSanitized && dp == 1) continue;
    for (const auto& [first, second] : {std::pair{0, 1}, std::pair{2, 3}}) {
      const PipelineRun base{.pp = 2, .dp = dp, .stage = first};
      const RunResult expected = run_pipeline(base, model);
      EXPECT_TRUE(close(run_pipeline(base.without_stages(), model), expected, 1e-5));
      expect_planned_memory(expected);
      for (const int stage : {first, second}) {
        for (const PipelineSchedule schedule : {gpipe, interleaved, zero_bubble_h1}) {
          PipelineRun run = base;
          run.stage = stage;
          run.schedule = schedule;
          if (schedule == interleaved) run.partition = "parameters";
          SCOPED_TRACE(run.text());
          const RunResult result = run_pipeline(run, model);
          EXPECT_TRUE(same_bits(expected, result));
          expect_planned_memory(result);
        }
      }
    }
  }
  const PipelineRun folded{.pp = 2, .dp = 2, .stage = 2, .schedule = zero_bubble_v};
  const RunResult result = run_pipeline(folded, model);
  EXPECT_TRUE(close(run_pipeline(folded.without_stages(), model), result, 1e-5));
}

TEST(PipelineZero, EveryPrecision) {
  for (const char* precision :
       {R"("bf16": {"enabled": true}, )",
        R"("fp16": {"enabled": true, "initial_scale_power": 20, "hysteresis": 1}, )",
        R"("fp16": {"enabled": true, "initial_scale_power": 6}, )",
        R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"}, )"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      PipelineRun run{.pp = 2, .dp = 2, .stage = stage, .schedule = zero_bubble_h1};
      run.top = precision;
      if (stage == 0 && run.top.find("grad_accum") != std::string::npos) continue;
      expect_bits_without_stages(run, deep_nano(false, 2));
    }
  }
}

TEST(PipelineZero, EveryOptimizer) {
  for (const char* optimizer : {R"({"type": "Lamb", "params": {"lr": 0.01}})",
                                R"({"type": "Muon", "params": {"lr": 0.01}})",
                                R"({"type": "Lion", "params": {"lr": 0.001}})",
                                R"({"type": "SGD", "params": {"lr": 0.1}})"}) {
    for (const bool tied : {false, true}) {
      PipelineRun run{.pp = 2, .dp = 2, .stage = 1, .accumulation = 2};
      run.optimizer = optimizer;
      run.top = R"("gradient_clipping": 0.5, "zero_allow_untested_optimizer": true, )";
      const ModelConfig model = deep_nano(tied, 2);
      if (!tied) {
        expect_bits_without_stages(run, model);
        continue;
      }
      SCOPED_TRACE(run.text());
      EXPECT_TRUE(close(run_pipeline(run.without_stages(), model), run_pipeline(run, model), 1e-4));
    }
  }
}

TEST(PipelineZero, EveryTier) {
  const TemporaryFolder folder;
  const auto on = [&](const char* what, const char* device, const char* more = "") {
    return concat(R"(, ")", what, R"(": {"device": ")", device, R"(", "nvme_path": ")",
                  folder.file("drive"), "\"", more, "}");
  };
  const ModelConfig model = deep_nano(true, 2);
  for (const int stage : {1, 2, 3}) {
    PipelineRun run{.pp = 2, .dp = 2, .stage = stage, .accumulation = 3};
    run.top = R"("bf16": {"enabled": true}, )";
    const RunResult expected = run_pipeline(run, model);
    std::vector<std::string> tiers = {on("offload_optimizer", "cpu"),
                                      on("offload_optimizer", "nvme")};
    if (stage == 3) tiers.push_back(on("offload_optimizer", "cpu", R"(, "ratio": 0.5)"));
    if (stage == 3) tiers.push_back(on("offload_optimizer", "cpu") + on("offload_param", "cpu"));
    if (stage == 3) tiers.push_back(on("offload_optimizer", "nvme") + on("offload_param", "nvme"));
    for (const std::string& tier : tiers) {
      run.zero = tier;
      SCOPED_TRACE(run.text());
      const RunResult result = run_pipeline(run, model);
      EXPECT_TRUE(same_bits(expected, result));
      expect_planned_memory(result);
    }
  }
}

TEST(PipelineZero, Recomputation) {
  for (const PipelineSchedule schedule : {one_forward_one_backward, interleaved, zero_bubble_v}) {
    for (const char* keys : {R"("pipeline": {"activation_checkpoint_interval": 1}, )",
                             R"("pipeline": {"activation_checkpoint_interval": 2}, )",
                             R"("activation_checkpointing": {"cpu_checkpointing": true}, )"}) {
      PipelineRun run{.pp = 2, .stage = 0, .schedule = schedule};
      run.top = keys;
      const ModelConfig model = deep_nano(false, 6);
      SCOPED_TRACE(run.text());
      const RunResult result = run_pipeline(run, model);
      PipelineRun plain = run.without_stages();
      plain.top = "";
      EXPECT_TRUE(same_bits(run_pipeline(plain, model), result));
      expect_planned_memory(result);
      PipelineRun whole = run;
      whole.top = "";
      EXPECT_LT(result.estimates[0][Tier::device][Category::activations],
                run_pipeline(whole, model).estimates[0][Tier::device][Category::activations]);
    }
  }
}

TEST(PipelineZero, GroupsOfShards) {
  for (const char* groups : {R"(, "zero_hpz_partition_size": 2)", R"(, "mics_shard_size": 2)"}) {
    PipelineRun run{.pp = 2, .dp = 4, .stage = 3, .accumulation = 2};
    run.zero = groups;
    expect_bits_without_stages(run, deep_nano(false, 2));
  }
}

/// Warm-up must not wait for micro-batches that never come.
TEST(PipelineZero, PP02FewerMicroBatchesThanStages) {
  const ModelConfig model = deep_nano(false, 6);
  for (const int accumulation : {1, 2, 3, 4, 5}) {
    PipelineRun run{.pp = accumulation == 4 ? 2 : 4, .stage = 2, .accumulation = accumulation};
    const RunResult expected = run_pipeline(run.without_stages(), model);
    for (const PipelineSchedule schedule :
         {gpipe, one_forward_one_backward, interleaved, zero_bubble_h1, zero_bubble_v}) {
      if (kSanitized && schedule != one_forward_one_backward) continue;
      run.schedule = schedule;
      SCOPED_TRACE(run.text());
      EXPECT_TRUE(same_bits(expected, run_pipeline(run, model)));
    }
  }
}

TEST(PipelineZero, PP03AStageWithNothingToTrain) {
  const ModelConfig model = deep_nano(false, 2);
  for (const char* frozen : {"wte|wpe", "wte|wpe|h.0", "h.1|ln_f|lm_head"}) {
    for (const PipelineSchedule schedule : {one_forward_one_backward, zero_bubble_h1}) {
      for (const int stage : {1, 3}) {
        PipelineRun run{.pp = 2, .dp = 2, .stage = stage, .schedule = schedule};
        run.partition = frozen[0] == 'w' && frozen[7] == '\0' ? "1,3" : "2,2";
        run.top = R"("gradient_clipping": 0.5, )";
        const auto freeze = [&](RunOptions options) {
          options.engine.adjust = [list = std::string(frozen)](ParameterSpec& spec) {
            std::string_view rest = list;
            while (!rest.empty()) {
              const std::size_t end = std::min(rest.find('|'), rest.size());
              if (spec.name.find(rest.substr(0, end)) != std::string::npos) spec.frozen = true;
              rest.remove_prefix(std::min(end + 1, rest.size()));
            }
          };
          return options;
        };
        SCOPED_TRACE(concat(run.text(), ", frozen ", frozen));
        const PipelineRun plain = run.without_stages();
        const RunResult result = run_engine(run.settings(), freeze(options_of(run, model)));
        EXPECT_TRUE(
            same_bits(run_engine(plain.settings(), freeze(options_of(plain, model))), result));
        expect_planned_memory(result);
      }
    }
  }
}

/// One rank with four micro-batches, and two stages of two replicas with two each: other sums, the
/// same samples.
TEST(PipelineZero, FiftyStepsStayCloseToOneRank) {
  const ModelConfig model = deep_nano(true, 2);
  const int steps = kSanitized ? 5 : 50;
  const PipelineRun alone{.pp = 1, .dp = 1, .stage = 0, .accumulation = 4};
  const PipelineRun mesh{.pp = 2, .dp = 2, .stage = 2, .accumulation = 2};
  EXPECT_TRUE(close(run_pipeline(alone, model, steps), run_pipeline(mesh, model, steps), 1e-5));
}

/// What a micro-batch sends is its hidden states at each border, and their gradients back.
TEST(PipelineZero, SendsHiddenStatesAndTheirGradientsAlone) {
  for (const PipelineSchedule schedule : {one_forward_one_backward, interleaved}) {
    const PipelineRun run{.pp = 2, .schedule = schedule};
    const RunResult result = run_pipeline(run, deep_nano(false, 2));
    const std::int64_t hidden = 2 * kNanoSequence * 16;
    CommVolume volume = result.volumes.back();
    // Of the first stage: values over the border above it; with two chunks, over two such borders,
    // and gradients over the one below its second chunk.
    const std::int64_t sent = run.accumulation * hidden * (schedule == interleaved ? 3 : 1);
    EXPECT_EQ(volume.operations["send"].elements, sent);
    EXPECT_EQ(volume.operations["recv"].elements, sent);
  }
}

/// Gradients 1, then fifteen of 2^-9, as they come from micro-batches in bf16: added up in fp32
/// none is lost.
TEST(PipelineZero, PREC01SmallGradientsSurviveAccumulation) {
  constexpr int kMicroBatches = 16;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* dtype : {"", R"("data_types": {"grad_accum_dtype": "bf16"}, )"}) {
      if (stage == 0 && dtype[0] != '\0') continue;
      PipelineRun run{.pp = 2, .stage = stage, .accumulation = kMicroBatches};
      run.top = concat(R"("bf16": {"enabled": true}, )", dtype);
      RunOptions options = options_of(run, deep_nano(false, 2), 1);
      options.batch = [](const Moment&) { return TokenBatch(1, 1); };
      options.make_module = [](int) {
        auto blocks = probe_blocks({1, 1}, [](int, const ProbeClock& clock) {
          return clock.micro_batch == 0 ? 1.0f : 1.0f / 512;
        });
        const auto module = std::make_shared<ProbeModule*>(nullptr);
        for (ProbeBlockSpec& block : blocks) {
          block.on_host = [module, count = std::make_shared<int>(0)](bool forward) {
            if (forward) (*module)->clock.micro_batch = (*count)++ % kMicroBatches;
          };
        }
        auto made = std::make_unique<ProbeModule>(std::move(blocks));
        *module = made.get();
        return made;
      };
      SCOPED_TRACE(run.text());
      const RunResult result = run_engine(run.settings(), options);
      for (const char* name : {"p0", "p1"})
        EXPECT_EQ(result.gradients.back().at(name).at(0),
                  dtype[0] == '\0' ? 1.029296875f / 16 : 0.0625f);
    }
  }
}

}  // namespace
}  // namespace zero3d::test
