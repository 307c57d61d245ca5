// What a training run is to do, as plain data: all that the engine knows about a run. A trainer
// fills in what differs from the defaults; the layer ds_config makes one from a file.
// Sizes count elements.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "zero3d/core/dtype.h"
#include "zero3d/engine/delayed_update_settings.h"
#include "zero3d/engine/pipeline/partition.h"
#include "zero3d/engine/pipeline/pipeline_schedule.h"
#include "zero3d/engine/recomputation.h"
#include "zero3d/engine/zero/policy.h"
#include "zero3d/offload/offload_settings.h"
#include "zero3d/optim/loss_scaler.h"
#include "zero3d/optim/make_rule.h"
#include "zero3d/optim/schedule.h"

namespace zero3d {

/// Which ranks share what, and how parameters that are sharded travel.
struct ShardingSettings {
  ShardingPolicy what;  ///< sharding_policy(stage) for the stages of ZeRO.
  int ranks = 0;        ///< A whole set of shards lies on this many ranks; 0: on all (MiCS: fewer).
  int secondary_ranks =
      1;  ///< Ranks of a second partition, for gathers in backward (hpZ); 1: none.

  std::int64_t gather_bucket = 500'000'000;  ///< Gathers of updated parameters are cut into these.
  std::int64_t prefetch = 50'000'000;        ///< Gathered ahead of the block at work.
  std::int64_t max_live = 1'000'000'000;     ///< Gathered at a time.
  std::int64_t max_reuse_distance = 1'000'000'000;  ///< Used again within this: stays gathered.
  /// Parameters of at most this size are never sharded, as long as they fit the total.
  std::int64_t persistent_parameter = 100'000;
  std::int64_t persistent_total = std::numeric_limits<std::int64_t>::max();
  /// Whether Engine::save_16bit_model gathers sharded parameters; else it saves nothing.
  bool gather_to_save = true;
};

/// From a micro-batch's gradients to what the optimizer is given.
struct GradientSettings {
  bool mean = true;             ///< Over ranks; else the sum.
  bool prescale = false;        ///< Divide before the sum over ranks rather than after it.
  double predivide_factor = 1;  ///< With prescale off: this part of the division goes before.
  std::int64_t reduce_bucket = 500'000'000;
  bool overlap_reduction = true;  ///< A second bucket fills while one is reduced.
  bool reduce_scatter = true;     ///< Else all-reduce, and take the shard.
  double max_norm = 0;            ///< Clip the global L2 norm to this; 0 or less: do not clip.
  bool take_norm = true;          ///< Off: no norm to report or clip by.
  bool skip_non_finite = true;    ///< Skip the step; else the weights take what comes.
};

struct PrecisionSettings {
  DType parameters = DType::f32;     ///< And activations, and gradients as they are made.
  DType accumulation = DType::f32;   ///< Of gradients over micro-batches.
  DType communication = DType::f32;  ///< Of gradient reductions.
  DType masters = DType::f32;        ///< Of the weights that the optimizer updates.
  /// Present: losses are scaled (for f16). The dtype of moments is the optimizer's business.
  std::optional<LossScalerOptions> loss_scale;
};

/// Into how many tiles a module that can cut its layers is to cut them. Whoever builds the module
/// follows it (models/build.h); the engine runs the tiles that it finds.
struct TileSettings {
  int linear = 0;  ///< Each linear layer; 1: none is cut; 0: as the memory budget asks.
  int head = 0;    ///< The token table and the head with its logits.
  friend bool operator==(const TileSettings&, const TileSettings&) = default;
};

/// What becomes of a checkpoint that ranks save under different tags.
enum class TagValidation {
  ignore,  ///< The first rank's tag goes for all.
  warn,    ///< The same, with a warning.
  fail     ///< An error.
};
std::string_view name_of(TagValidation validation);

/// How the stages of a pipeline divide the model and the work; with one stage it has no effect.
struct PipelineSettings {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int virtual_stages = 0;  ///< Chunks of the model on each stage; 0: as few as the schedule has.
  PartitionChoice partition;
};

struct TrainSettings {
  std::int64_t micro_batch = 1;      ///< Rows of a rank's micro-batch.
  std::int64_t accumulation = 1;     ///< Micro-batches of a step.
  bool managed_accumulation = true;  ///< Off: every Engine::step() ends a window.
  int dp = 0;  ///< Replicas that the batch sizes were worked out for; 0: any number.
  // Degrees of model parallelism; the rest of the ranks are replicas.
  int tp = 1;  ///< Ranks that share every layer.
  int pp = 1;  ///< Stages of a pipeline.
  int sp = 1;  ///< Ranks that share a sequence.
  PipelineSettings pipeline;
  /// Outside parallel regions tensor-parallel ranks each have rows of their own: TensorParallel.
  bool split_rows = false;
  bool overlap_tp = false;  ///< Sums of tensor-parallel ranks beside the products they are of.
  bool split_kept = false;  ///< Of inputs kept for recomputation each such rank keeps a part.
  ShardingSettings sharding;
  GradientSettings gradients;
  PrecisionSettings precision;
  RecomputationSettings recomputation;
  OffloadSettings offload;
  DelayedUpdateSettings delayed_updates;  ///< Of an optimizer that is offloaded to host memory.
  TileSettings tiles;
  OptimizerChoice optimizer;
  ScheduleChoice schedule;  ///< Without a type: the optimizer's own rate throughout.
  std::int64_t optimizer_tile = 1'000'000'000;  ///< Updated at a time.
  std::int64_t log_every = 0;                   ///< Steps between progress lines; 0: none.
  TagValidation tag_validation = TagValidation::warn;
};

/// For settings that no loader checked: throws Error(kInvalid) that names the first field out of
/// its range.
void require_in_range(const TrainSettings& settings);

/// A line for people: what is updated where and when.
std::string describe_updates(const DelayedUpdateSettings& delayed);

/// All of it as text, "name value, name value, ...": equal texts are equal settings. Ranks compare
/// it.
std::string describe(const TrainSettings& settings);

}  // namespace zero3d
