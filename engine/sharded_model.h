// The lower level of the engine, for trainers that have their own forward and backward: acquire
// parameters, write gradients, step. A thin runtime over one immutable ZeroPlan: it knows
// parameters, blocks as names for groups of them, and the operations it planned for; it runs no
// model.
//
//   model.begin_training(m);
//   for each block: op = forward_of(block, m); views = acquire(op); ... work on compute() ...;
//     release(op);
//   model.begin_backward(m, last);
//   for each block, last first: op = backward_of(block, m); views = acquire(op); targets =
//     gradients(op); ... write them ...; release(op);
//   model.step();
//
// Settings that recompute add operations (plan().training has them all): follow that list then.
//
// One object per rank, used from that rank's thread. All work on views goes on compute() (or is
// ordered after it by events).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/offload_use.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/parameter_access.h"
#include "zero3d/engine/parameter_source.h"
#include "zero3d/engine/rank_streams.h"
#include "zero3d/engine/run_state.h"
#include "zero3d/engine/step_times.h"
#include "zero3d/engine/train_settings.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/engine/zero/sharded_optimizer.h"
#include "zero3d/engine/zero/step_report.h"
#include "zero3d/engine/zero_plan.h"
#include "zero3d/optim/loss_scaler.h"
#include "zero3d/parallel/mesh.h"

namespace zero3d {

struct ShardedModelOptions : PlanOptions {
  const ParameterSource* source =
      nullptr;  ///< Read while the model is made; null: initial values drawn with `seed`.
  std::uint64_t seed = 1234;
  std::vector<ParameterGroup> groups;
  int max_consecutive_skips = 50;  ///< This many skipped steps in a row end the run with the cause.
  /// Of what the model takes for the life of the run, before any of it is allocated: throws to
  /// refuse it. An engine that knows its sequences asks of the whole plan first.
  std::function<void(const MemoryEstimate&)> approve_memory;
  /// Nothing is allocated or read: what is made can tell its plans and memory, and do nothing else.
  bool plan_only = false;
};

/// What offload_states() moves.
struct MovableStates {
  bool optimizer_states = true;  ///< Masters of 16-bit training and moments.
  bool parameters = true;        ///< Shards and whole copies; fp32 masters are these.
  bool gradients = true;         ///< Accumulators and buckets.
  bool any() const { return optimizer_states || parameters || gradients; }
};
inline constexpr MovableStates kNothingMoved = {
    .optimizer_states = false, .parameters = false, .gradients = false};

/// What one optimizer step did.
struct StepOutcome {
  bool applied = false;
  double loss = 0;  ///< Mean, over micro-batches and ranks, of the losses given to add_loss that
                    ///< have a target; NaN when none has.
  std::int64_t losses = 0;  ///< How many have.
  double gradient_norm =
      0;  ///< Global, unscaled, before clipping; infinite or NaN when not finite.
  double clip_factor = 1;
  double lr = 0;          ///< Used (or, when skipped, not used) by this step; first group.
  double loss_scale = 1;  ///< The scale the gradients were made with.
};

class ShardedModel final : public ParameterAccess {
 public:
  /// `blocks[b]`: the parameters block b of the model uses; a stage of a pipeline takes its own,
  /// and numbers them anew (plan().stage). Collective. The referred objects must outlive this. What
  /// it refuses it refuses on every rank, before parameters are read; a rank that fails later fails
  /// the world.
  ShardedModel(const TrainSettings& settings, const std::vector<std::vector<ParameterSpec>>& blocks,
               const Mesh& mesh, Device& device, const ShardedModelOptions& options = {});
  ~ShardedModel() override;

  const ZeroPlan& plan() const { return plan_; }
  Device& device() { return device_; }
  Stream& compute() { return *streams_.compute; }
  const RankStreams& streams() const { return streams_; }
  /// Blocks the host until all streams are empty: after a step parameters may still be on their
  /// way.
  void synchronize() { streams_.synchronize(); }

  /// Plans the gathers of both passes within what the devices' budgets leave beside activations of
  /// `bytes`: the smallest budget and the largest activations of all ranks. Called by the first
  /// pass with 0 if not before. Collective, host-blocking.
  void reserve_activations(std::int64_t bytes);
  /// Activations grow on this rank, and others need not hear of it: throws OutOfMemory when they do
  /// not fit beside the gathers as they are planned.
  void add_activations(std::int64_t bytes);
  /// The plan's memory with what calls have added to it: for micro-batches that the settings did
  /// not know of, for coalescing.
  const MemoryEstimate& memory() const { return memory_; }
  /// Bytes of host memory in it for exports.
  std::int64_t export_host_bytes() const {
    return options_.exports || exports_planned_ ? plan_.export_host_bytes : 0;
  }
  const PassPlans& passes() const { return passes_; }

  /// Saves and loads take so many pinned bytes of this rank at a time: the most of all that were
  /// told joins memory(), beside what is planned for loading the model and, where training waits,
  /// for exports. Throws OutOfMemory where the host's budget is smaller.
  void plan_checkpoints(std::int64_t bytes, bool asynchronous);
  /// What the host's budget leaves to them beside the rest; the largest int64 without a budget.
  std::int64_t checkpoint_room(bool asynchronous) const;

  /// Windows from here on have so many micro-batches: plans them anew. Collective, between windows.
  void set_accumulation(std::int64_t micro_batches);
  /// Throws Error(kInvalid) for a model that only plans, or whose states are moved off the device,
  /// as the calls that begin a pass do.
  void require_made() const;
  /// plan().training is about to come, micro-batches counted from `first_micro_batch` of the
  /// accumulation window.
  void begin_training(int first_micro_batch);
  /// plan().evaluation is; gradients are left alone.
  void begin_evaluation();
  std::vector<ConstView> acquire(const Op& op) override;
  void begin_backward(int micro_batch, bool last) override;
  std::vector<GradientTarget> gradients(const Op& op) override;
  void release(const Op& op) override;
  void add_loss(const ConstView& loss) override { reporter_->add_loss(compute(), loss); }
  /// GradientReducer's, between micro-batches.
  void begin_coalescing();
  void end_coalescing() { reducer_->end_coalescing(); }

  /// Multiplies the loss before backward: loss scale / micro-batches of the window.
  double loss_seed(std::int64_t micro_batches) const;
  /// Ends the window: norm, overflow decision, clipping, update, publication. Blocks once, for the
  /// norm.
  StepOutcome step();

  /// Where updates are delayed: what waits for the end of its round is applied now, and all
  /// parameters take effect. Before the model is given away; it ends the round early. Collective,
  /// between windows; nothing to do elsewhere.
  void flush_updates();
  /// Of the last step that was applied, on this rank, where updates are delayed.
  std::optional<UpdateUse> update_use() const { return optimizer_->update_use(); }

  /// Where the run is; between windows it may be restored, and the caller keeps its place in the
  /// data there.
  RunState& state() { return state_; }
  const RunState& state() const { return state_; }
  /// What the next step uses, per group.
  std::vector<GroupSettings> settings() const { return setup_.settings(state_.schedule_steps); }

  /// Every parameter of the model whole and under its global shape, in the order of declaration
  /// (whatever ZeRO and a pipeline make of it), for the host to read on every rank. Collective,
  /// host-blocking.
  void for_each_parameter(const std::function<void(const ParameterSpec&, const ConstView&)>& use);
  /// Parameters by name, whole; `edit` may change what the world's rank `writer` sees (-1: nobody
  /// writes), and every rank takes its values and fp32 masters from there. In a pipeline a stage
  /// sees those that it holds, and the rank at the writer's place in it writes. Collective,
  /// host-blocking, not within a window. A writer flushes delayed updates first.
  void with_parameters(const std::vector<std::string>& names, int writer,
                       const std::function<void(const ParameterSpec&, View)>& edit);

  /// Moves what `which` names from the device to pinned host memory, where it has lain since the
  /// model was made, until reload_states(): for whoever needs the device between steps. What is
  /// offloaded anyway stays where it is, and gradients, which hold nothing between steps, are given
  /// up. Until then nothing that needs a state may be called: Error(kInvalid). Host bytes join
  /// memory(). Between windows; blocks the host; of this rank alone, but every rank that trains has
  /// to reload. Throws OutOfMemory where the budget of the host is smaller, and has moved nothing.
  void offload_states(const MovableStates& which = {});
  /// Back to where it was; nothing to do without offload_states().
  void reload_states();

  StepTimes& times() { return times_; }
  /// Of this rank, so far.
  OffloadUse offload_use() const;
  const OptimizerSetup& setup() const { return setup_; }
  const Mesh& mesh() const { return mesh_; }
  const TrainSettings& train_settings() const { return settings_; }
  /// Where this rank's part of the model lies in the whole of it.
  const ModelPart& part() const { return part_; }
  /// This rank's place among those that each hold a shard.
  int shard_rank() const { return groups_.gather->rank(); }
  const LossScaler& loss_scaler() const { return scaler_; }
  ParameterStore& store() { return *store_; }
  GradientReducer& reducer() { return *reducer_; }
  ShardedOptimizer& optimizer() { return *optimizer_; }

 private:
  void build();
  void make_reducer();
  bool is_first_holder(const LayoutParameter& parameter) const;
  int at_this_stage(int rank) const;
  void with_global(const LayoutParameter& parameter, const View& stored,
                   const std::function<void(const ConstView&)>& use);
  Tensor global_copy(const ParameterSpec& spec);
  Tensor gather_pieces(const std::vector<int>& pieces);
  void edit_pieces(const std::vector<int>& pieces, int writer, int source,
                   const std::function<void(const ParameterSpec&, View)>& edit);
  void require_block(const Op& op) const;
  void plan_late(Category category, std::int64_t& bytes);
  void plan_late(const PerTier<PerCategory<std::int64_t>>& more);
  void plan_exports();
  std::int64_t spare_bytes(bool asynchronous) const;
  bool may_update_early() const;
  StepOutcome decide(const UpdateInputs& inputs);
  void update(UpdateInputs inputs, const StepOutcome& outcome);
  void skip(const StepReport& report, const StepOutcome& outcome);
  void join_parts(const LayoutParameter& parameter, const ConstView& stored, const View& global);
  void broadcast_host(const View& values, Communicator& group, int root);
  void edit_global(const ParameterSpec& spec, const View& global, int writer,
                   const std::function<void(const ParameterSpec&, View)>& edit);
  void edit_parameter(const LayoutParameter& parameter, const View& stored, int writer,
                      const std::function<void(const ParameterSpec&, View)>& edit);

  TrainSettings settings_;
  const std::vector<std::vector<ParameterSpec>> blocks_;
  Device& device_;
  const Mesh& mesh_;
  ShardedModelOptions options_;
  const std::unique_ptr<ParameterSource> source_;  ///< Where the options name none.
  OptimizerSetup setup_;
  ZeroPlan plan_;
  MemoryEstimate memory_;
  LateMemory late_;  ///< What is not in it yet.
  std::int64_t activations_ = 0;
  std::int64_t checkpoints_ = 0;  ///< Of memory_.
  PassPlans passes_;
  LossScaler scaler_;
  RunState state_;
  ZeroGroups groups_;
  ModelPart part_;
  const std::int64_t budget_;  ///< The smallest of all ranks' devices; negative: none.
  const std::int64_t host_budget_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<OffloadedGradients> offloaded_gradients_;  ///< Null where none are.
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<StepReporter> reporter_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  StepTimes times_;
  bool planned_ = false;
  bool exports_planned_ = false;
  MovableStates moved_ = kNothingMoved;
  bool transforms_ = false;  ///< Some rank's optimizer transforms gradients before the norm.
  // Last, so that they go first: their work ends before what it uses is gone.
  RankStreams streams_;
};

}  // namespace zero3d
