// What the tests of pipelines share: a nano model of several layers, and its runs on meshes of
// stages and replicas.
#pragma once

#include <string>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {

struct PipelineRun {
  int pp = 2;
  int dp = 1;
  int stage = 0;
  int accumulation = 4;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int virtual_stages = 0;
  std::string partition = "uniform";
  std::string top;   ///< Keys of the configuration, ending in a comma.
  std::string zero;  ///< Of zero_optimization, beginning with one.
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.001}})";

  std::string text() const {
    return concat("pp ", pp, ", dp ", dp, ", ZeRO stage ", stage, ", ", name_of(schedule), ", ",
                  accumulation, " micro-batches, ", partition, ", ", optimizer, top, zero);
  }
  int ranks() const { return pp * dp; }
  TrainSettings settings() const {
    TrainSettings made = settings_of(
        concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
               accumulation, ", ", top, R"("optimizer": )", optimizer,
               R"(, "zero_optimization": {"stage": )", stage,
               R"(, "stage3_param_persistence_threshold": 100, "reduce_bucket_size": 2000,
                  "stage3_max_reuse_distance": 20000, "stage3_prefetch_bucket_size": 3000)",
               zero, "}}"),
        dp);
    made.pp = pp;
    made.pipeline.schedule = pp > 1 ? schedule : PipelineSchedule::one_forward_one_backward;
    made.pipeline.virtual_stages = pp > 1 ? virtual_stages : 0;
    made.pipeline.partition = parse_partition(partition);
    return made;
  }
  /// The same on the replicas alone.
  PipelineRun without_stages() const {
    PipelineRun plain = *this;
    plain.pp = 1;
    return plain;
  }
};

inline ModelConfig deep_nano(bool tied, int layers = 6) {
  ModelConfig model = nano_gpt2(tied);
  model.layers = layers;
  model.residual_dropout = model.attention_dropout = model.embedding_dropout = 0.1;
  return model;
}

inline RunOptions options_of(const PipelineRun& run, const ModelConfig& model, int steps = 2) {
  RunOptions options = nano_options(model, run.dp, run.accumulation);
  options.ranks = run.ranks();
  options.steps = steps;
  return options;
}

inline RunResult run_pipeline(const PipelineRun& run, const ModelConfig& model, int steps = 2) {
  return run_engine(run.settings(), options_of(run, model, steps));
}

/// The plan tells the peak of every stage to the byte.
inline void expect_planned_memory(const RunResult& result) {
  for (std::size_t rank = 0; rank < result.memory.size(); ++rank)
    EXPECT_EQ(result.memory[rank].peak, result.estimates[rank].total()) << "rank " << rank;
}

}  // namespace zero3d::test
