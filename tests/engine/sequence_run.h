// What the tests of ranks that share sequences share: a training run of a nano model on a mesh.
#pragma once

#include <string>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"

namespace zero3d::test {

inline constexpr double kClose = 1e-5;
inline constexpr std::int64_t kRows = 2;
/// A prime number of tokens: no parts of them are even.
inline constexpr std::int64_t kOdd = 11;

struct SequenceRun {
  int sp = 1;
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int stage = 0;
  std::int64_t sequence = kOdd;
  int steps = 2;
  int micro_batches = 2;  ///< Of a step, over all replicas.
  std::string zero;       ///< More of zero_optimization,
  std::string top;        ///< and of the top level.
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}})";

  int accumulation() const { return micro_batches / dp; }
  std::string name() const {
    return concat("sp ", sp, " x tp ", tp, " x pp ", pp, " x dp ", dp, ", stage ", stage, " ", zero,
                  top);
  }
};

inline std::string json_of(const SequenceRun& run) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": )", kRows, R"(, "gradient_accumulation_steps": )",
      run.accumulation(), R"(, "gradient_clipping": 0.5, "optimizer": )", run.optimizer,
      R"(, "sequence_parallel_size": )", run.sp, R"(, "tensor_parallel": {"autotp_size": )", run.tp,
      "}", run.pp > 1 ? concat(R"(, "pipeline": {"stages": )", run.pp, "}") : "",
      run.top.empty() ? "" : ", ", run.top,
      R"(, "zero_optimization": {"stage3_param_persistence_threshold": 40, "stage": )", run.stage,
      run.zero.empty() ? "" : ", ", run.zero, "}}");
}

inline RunOptions options_of(const ModelConfig& model, const SequenceRun& run) {
  RunOptions options = nano_options(model, run.dp, run.accumulation(), kRows);
  options.ranks = run.dp * run.tp * run.pp * run.sp;
  options.steps = run.steps;
  options.batch = [run](const Moment& moment) {
    return nano_batch(moment, run.dp, run.accumulation(), kRows, run.sequence);
  };
  return options;
}

inline RunResult train(const ModelConfig& model, const SequenceRun& run) {
  return run_engine(json_of(run), options_of(model, run));
}

inline std::string name_of(const ModelConfig& model) {
  return std::string(model_type_name(model.family));
}

inline constexpr const char* kSplit = R"("zero3d": {"sequence_parallel": true})";

}  // namespace zero3d::test
