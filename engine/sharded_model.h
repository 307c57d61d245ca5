// The lower level of the engine, for trainers that have their own forward and backward: acquire
// parameters, write gradients, step. It knows parameters, blocks as names for groups of them, and
// the order forward 0..L-1, backward L-1..0; it runs no model.
//
//   model.begin_micro_batch(m, last);
//   for each block, forward then backward: views = acquire(block, phase); ... work on compute()
//   ...; release(block, phase);
//     in backward, before release: targets = gradients(block); ... write them ...; ready(block);
//   model.step();
//
// One object per rank, used from that rank's thread. All work on views goes on compute() (or is
// ordered after it by events).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/config/config.h"
#include "zero3d/engine/memory_estimate.h"
#include "zero3d/engine/module.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/parameter_source.h"
#include "zero3d/engine/run_state.h"
#include "zero3d/engine/step_times.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/engine/zero/policy.h"
#include "zero3d/engine/zero/sharded_optimizer.h"
#include "zero3d/engine/zero/step_report.h"
#include "zero3d/parallel/mesh.h"

namespace zero3d {

enum class Phase { forward, backward };

struct ShardedModelOptions {
  const ParameterSource* source =
      nullptr;  ///< Read while the model is made; null: initial values drawn with `seed`.
  std::uint64_t seed = 1234;
  std::vector<ParameterGroup> groups;
  bool reduce_each_micro_batch =
      false;  ///< Debug: stages 0 and 1 sum over ranks every micro-batch, as 2 and 3 do.
  int max_consecutive_skips = 50;  ///< This many skipped steps in a row end the run with the cause.
  StateStoreFactory state_store = make_device_state_store;  ///< Keeps masters and moments.
};

/// What one optimizer step did.
struct StepOutcome {
  bool applied = false;
  double loss = 0;  ///< Mean over micro-batches and ranks, of the losses given to add_loss.
  double gradient_norm =
      0;  ///< Global, unscaled, before clipping; infinite or NaN when not finite.
  double clip_factor = 1;
  double lr = 0;          ///< Used (or, when skipped, not used) by this step; first group.
  double loss_scale = 1;  ///< The scale the gradients were made with.
};

class ShardedModel {
 public:
  /// `blocks[b]`: the parameters block b uses. Collective. The referred objects must outlive this.
  ShardedModel(const Config& config, const std::vector<std::vector<ParameterSpec>>& blocks,
               const Mesh& mesh, Device& device, const ShardedModelOptions& options = {});
  ~ShardedModel();

  Stream& compute() { return *compute_; }
  /// Blocks the host until all streams are empty: after a step parameters may still be on their
  /// way.
  void synchronize();
  Device& device() { return device_; }
  const ParamLayout& layout() const { return *layout_; }
  DType dtype() const { return dtype_; }
  int rank() const { return mesh_.world().rank(); }
  /// Backward need not go below this block: no trainable parameter is there. block_count() when all
  /// are frozen.
  int first_trainable_block() const { return backward_down_to_; }

  /// Plans the gathers of stage 3 within what the device's budget leaves beside `activation_bytes`.
  /// Called by the first begin_micro_batch with 0 if not before; again when activations grow.
  void plan(std::int64_t activation_bytes);
  const FetchPlan& training_plan() const { return training_plan_; }
  const BucketPlan& bucket_plan() const { return buckets_; }
  /// Device bytes of this rank by category, `activation_bytes` included.
  MemoryEstimate memory_estimate(std::int64_t activation_bytes) const;

  /// `index` counts from 0 within an accumulation window; `last` ends the window.
  void begin_micro_batch(int index, bool last);
  /// A forward-only pass (evaluation); gradients are left alone.
  void begin_evaluation();
  std::vector<ConstView> acquire(int block, Phase phase);
  void release(int block, Phase phase);

  struct GradientTarget {
    View view;  ///< In the parameter's shape and dtype(); undefined for frozen parameters.
    bool accumulate = false;  ///< The parameter is tied and was written before: add to it.
  };
  /// Where backward of `block` writes, per declared parameter; every one must be written (zero if
  /// unused).
  std::vector<GradientTarget> gradients(int block);
  /// All gradients of `block` are enqueued on compute().
  void ready(int block);
  /// Micro-batches between the two are only added up on this rank, and reduced as one at the end.
  void begin_coalescing();
  void end_coalescing();
  /// Adds a micro-batch's loss, fp32 [2] = (sum, count), to the step's mean.
  void add_loss(const ConstView& loss);

  /// Multiplies the loss before backward: loss scale / micro-batches of the window.
  double loss_seed(int micro_batches) const;
  /// Ends the window of `micro_batches`: norm, overflow decision, clipping, update, publication.
  /// Blocks once, for the norm.
  StepOutcome step(int micro_batches);

  /// Where the run is; between windows it may be restored, and the caller keeps its place in the
  /// data there.
  RunState& state() { return state_; }
  const RunState& state() const { return state_; }
  /// What the next step uses, per group.
  std::vector<GroupSettings> settings() const { return setup_.settings(state_.schedule_steps); }
  const OptimizerSetup& optimizer() const { return setup_; }

  /// Every parameter whole, in order, for the host to read on every rank. Collective,
  /// host-blocking.
  void for_each_parameter(const std::function<void(const ParameterSpec&, const ConstView&)>& use);
  /// Parameters by name, whole; `edit` may change what rank `writer` sees (-1: nobody writes), and
  /// every rank takes its values and fp32 masters from there. Collective, host-blocking, not within
  /// a window.
  void with_parameters(const std::vector<std::string>& names, int writer,
                       const std::function<void(const ParameterSpec&, View)>& edit);

  /// After an abort of the ranks: throws what failed on this rank's streams, if that is no echo of
  /// the abort.
  void throw_own_failure();

  StepTimes& times() { return times_; }
  /// One line: dtypes of parameters, gradients, accumulation, communication, masters, moments.
  std::string precision_line() const;
  ParameterStore& store() { return *store_; }
  GradientReducer& reducer() { return *reducer_; }
  ShardedOptimizer& sharded_optimizer() { return *optimizer_; }

 private:
  int position(int block, Phase phase) const;
  MemoryInputs memory_inputs() const;
  MemoryEstimate static_memory() const;
  FetchOptions fetch_options(std::int64_t activation_bytes, bool forward_only) const;
  bool skips_non_finite() const;
  StepOutcome decide(const UpdateInputs& inputs, int micro_batches);
  void update(UpdateInputs inputs, const StepOutcome& outcome);
  void skip(const StepReport& report, const StepOutcome& outcome);
  ShardedOptimizerOptions optimizer_options() const;

  const Config& config_;
  Device& device_;
  const Mesh& mesh_;
  ShardedModelOptions options_;
  DType dtype_;
  ShardingPolicy policy_;
  OptimizerSetup setup_;
  LossScaler scaler_;
  RunState state_;
  ZeroGroups groups_;
  std::unique_ptr<ParamLayout> layout_;
  ModelPart part_;
  BucketPlan buckets_;
  FetchPlan training_plan_;
  int backward_down_to_ = 0;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<StepReporter> reporter_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  StepTimes times_;
  bool planned_ = false;
  // Last, so that they go first: a stream ends its work before what that work uses is gone.
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> gather_;
  std::unique_ptr<Stream> reduce_;
};

}  // namespace zero3d
