// All that is decided about a model before anything is allocated: where its parameters lie, the
// operations of a step, how gradients travel, what it takes. Pure functions of settings, parameters
// and numbers of ranks; ShardedModel only follows it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "zero3d/engine/memory_estimate.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/pipeline/stage_plan.h"
#include "zero3d/engine/schedule.h"
#include "zero3d/engine/train_settings.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/fetch_plan.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/engine/zero/sharded_optimizer.h"

namespace zero3d {

struct PlanOptions {
  bool reduce_each_micro_batch =
      false;  ///< Debug: stages 0 and 1 sum over ranks every micro-batch, as 2 and 3 do.
  StateStoreFactory state_store = make_device_state_store;  ///< Keeps masters and moments.
  /// The operations of a step, checked by require_step; empty: plan_step, micro-batch by
  /// micro-batch, or the settings' pipeline. The settings' recomputation is added to a list that
  /// has none.
  std::function<std::vector<Op>(const StageBlocks& stage, int micro_batches)> schedule;
  /// The host will read or write whole parameters (exports, edits by name): what that takes is in
  /// the plan from the start, and joins it at the first such call otherwise.
  bool exports = false;
  /// Of all blocks, for a partition by name and messages; empty: their numbers.
  std::vector<std::string> block_names;
};

/// How the model lies in the stages of a pipeline, the same on every rank.
struct PipelinePlan {
  PipelineShape shape;
  std::vector<int> bounds;          ///< The first block of each segment, then the number of blocks.
  std::vector<std::string> names;   ///< Of all parameters of the model, in order of declaration.
  bool trains = true;               ///< Any of them.
  std::set<std::vector<int>> tied;  ///< The sets of stages that hold a parameter together.
  /// All parameters, with stages alone to shard them; where there is more than one stage.
  std::optional<ParamLayout> whole;

  /// First blocks of the segments but the first.
  std::vector<int> borders() const { return {bounds.begin() + 1, bounds.end() - 1}; }
  bool whole_steps() const { return shape.segments() > 1; }
};

struct ZeroPlan {
  /// Of a parameter that is in parts, on their way from rank to rank for the host, at a time.
  static constexpr std::int64_t kPassingElements = 1 << 18;

  ZeroGroupSizes groups;
  PipelinePlan pipeline;
  ParamLayout layout;  ///< Of this stage's blocks.
  /// Backward need not go below stage.backward_down_to: no trainable parameter is there. It is the
  /// number of blocks when all are frozen.
  StageBlocks stage;
  /// What a step runs: the whole of it where the options give a schedule or the model is a
  /// pipeline, else one micro-batch's part.
  std::vector<Op> training;
  std::vector<Op> evaluation;
  BucketPlan buckets;
  ParameterStoreOptions parameters;
  GradientReducerOptions gradients;
  ShardedOptimizerOptions optimizer;
  OffloadedGradientsOptions offloaded_gradients;  ///< Where optimizer.offloads().
  FetchOptions fetches;                           ///< Without a budget.
  MemoryEstimate memory;  ///< Of what lives as long as the model: no activations, no gathers.
  LateMemory late;        ///< What calls may add to it.
  std::int64_t export_host_bytes = 0;  ///< Host memory of late.exports, wherever that is.

  /// Of all parameters of the model, in order of declaration.
  const ParamLayout& model_layout() const { return pipeline.whole ? *pipeline.whole : layout; }
  /// Of parameters, activations, and gradients as backward writes them.
  DType dtype() const { return parameters.dtype; }
  /// Parameters are gathered before use.
  bool gathers() const { return parameters.fetches(layout); }
  /// One line: dtypes of parameters, gradients, accumulation, communication, masters, moments.
  std::string precision_line() const;
  /// One line: how many blocks are computed again; "" when none is.
  std::string recomputation_line() const;
  /// One line: the blocks and parameters of each stage; "" when there is one.
  std::string pipeline_line() const;
  /// The share of their time that the stages of the settings' pipeline wait, if segments take equal
  /// times and backward twice those of forward; 0 without stages.
  double bubble(const TrainSettings& settings) const;
};

/// `blocks[b]`: the parameters block b of the model uses. Throws ConfigError for settings of
/// another mesh, and as partition_blocks.
ZeroPlan plan_zero(const TrainSettings& settings, const OptimizerSetup& setup,
                   const std::vector<std::vector<ParameterSpec>>& blocks, const Mesh& mesh,
                   const PlanOptions& options);

/// For each parameter of the model, in order of declaration: the unit that an export reads it from
/// on this rank; negative: it is in pieces, or another stage's. An export keeps a unit in host
/// memory from its first parameter to its last.
std::vector<int> units_to_export(const ZeroPlan& plan);

/// The gathers of training and of evaluation.
struct PassPlans {
  FetchPlan training;
  FetchPlan evaluation;
  std::int64_t arena_elements() const;
};
/// Within what `budget` bytes (negative: no limit) leave beside `taken` bytes: of the model and its
/// activations.
PassPlans plan_passes(const ZeroPlan& plan, std::int64_t taken, std::int64_t budget);

}  // namespace zero3d
