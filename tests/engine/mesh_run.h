// What the tests of meshes share: a training run of a nano model on one.
#pragma once

#include <string>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"

namespace zero3d::test {

inline constexpr double kClose = 1e-5;
inline constexpr std::int64_t kRows = 2;

struct MeshRun {
  int tp = 1;
  int dp = 1;
  int pp = 1;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int stage = 0;
  int micro_batches = 4;  ///< Of a step, over all replicas.
  int steps = 5;
  std::string zero;  ///< More of zero_optimization,
  std::string top;   ///< and of the top level.
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}})";
};

inline std::string mesh_json(const MeshRun& run) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": )", kRows, R"(, "gradient_accumulation_steps": )",
      run.micro_batches / run.dp, R"(, "gradient_clipping": 0.5, "optimizer": )", run.optimizer,
      R"(, "tensor_parallel": {"autotp_size": )", run.tp, "}", run.top.empty() ? "" : ", ", run.top,
      R"(, "zero_optimization": {"stage3_param_persistence_threshold": 40, "stage": )", run.stage,
      run.zero.empty() ? "" : ", ", run.zero, "}}");
}

inline RunOptions options_of(const ModelConfig& model, const MeshRun& run) {
  const int accumulation = run.micro_batches / run.dp;
  RunOptions options = nano_options(model, run.dp, accumulation, kRows);
  options.ranks = run.dp * run.tp * run.pp;
  options.steps = run.steps;
  // Micro-batches in the order of the step, as replicas divide it.
  options.batch = [run, accumulation](const Moment& moment) {
    return nano_batch(moment, run.dp, accumulation, kRows);
  };
  return options;
}

inline TrainSettings settings_of(const MeshRun& run) {
  TrainSettings settings = settings_of(mesh_json(run), run.dp * run.tp);
  settings.pp = run.pp;
  if (run.pp > 1) settings.pipeline.schedule = run.schedule;
  return settings;
}

inline RunResult train(const ModelConfig& model, const MeshRun& run) {
  return run_engine(settings_of(run), options_of(model, run));
}

inline std::string describe(const MeshRun& run) {
  return concat("dp ", run.dp, " x tp ", run.tp, " x pp ", run.pp, ", ZeRO stage ", run.stage, ", ",
                name_of(run.schedule), " ", run.zero, run.top);
}

inline void expect_close(const RunResult& expected, const RunResult& actual) {
  EXPECT_TRUE(close(expected, actual, kClose));
}

/// What is in flight on each stage beside its parameters is what was planned for it, to the byte;
/// of gathered parameters the plan has also what only exports take.
inline void expect_memory_as_planned(const RunResult& result) {
  constexpr Category kGathered = Category::gathered_parameters;
  for (std::size_t rank = 0; rank < result.memory.size(); ++rank) {
    const MemoryUse& use = result.memory[rank];
    const MemoryEstimate& plan = result.estimates[rank];
    EXPECT_LE(use.categories[kGathered].peak, plan[Tier::device][kGathered]) << "rank " << rank;
    EXPECT_EQ(use.peak - use.categories[kGathered].peak,
              plan.total() - plan[Tier::device][kGathered])
        << "rank " << rank;
  }
}

inline std::string name_of(const ModelConfig& model) {
  return std::string(model_type_name(model.family));
}

inline constexpr const char* kSplit = R"("zero3d": {"sequence_parallel": true})";

}  // namespace zero3d::test
