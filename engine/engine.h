// The engine: trains a Module as its settings say, by DeepSpeed's calls forward / backward / step
// (train_batch does all three for a whole accumulation window). One object per rank, used from that
// rank's thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/device/device_choice.h"
#include "zero3d/engine/accumulation_window.h"
#include "zero3d/engine/checkpoint/checkpoint.h"
#include "zero3d/engine/dry_run.h"
#include "zero3d/engine/memory_estimate.h"
#include "zero3d/engine/module.h"
#include "zero3d/engine/pipeline/stage_links.h"
#include "zero3d/engine/sharded_model.h"
#include "zero3d/engine/train_settings.h"
#include "zero3d/parallel/mesh.h"

namespace zero3d {

/// One micro-batch in host memory, i32 [B, T] each; read during the call that takes it, by ranks
/// that read batches (Engine::reads_batches). In a pipeline all stages are given the same shapes.
struct MicroBatch {
  /// Of whole samples also where ranks share them (sp): each then takes its part.
  ConstView tokens;
  ConstView targets;  ///< kIgnoreTarget (-100) where no loss is taken.
  /// Number of the first row among the rows of all ranks in this step: what dropout draws for. Not
  /// given: counted by the micro-batches of the window, then the data-parallel ranks.
  std::optional<std::int64_t> first_sample = std::nullopt;
};

struct StepResult {
  std::int64_t step = 0;  ///< 1 for the first step; skipped ones count.
  double loss = 0;  ///< Mean over micro-batches and ranks of each micro-batch's mean token loss;
                    ///< those without a target are left out, and it is NaN when none has one.
  std::int64_t ignored_micro_batches = 0;  ///< Of all ranks: without a target.
  double grad_norm = 0;  ///< Global, before clipping; infinite when the step was skipped.
  double clip_factor = 1;
  double lr = 0;  ///< Used by this step.
  double loss_scale = 1;
  bool skipped = false;
  std::int64_t tokens = 0;  ///< Of all ranks.
  double seconds = 0;  ///< Since the previous step ended, but for evaluations and exports since.
  std::array<double, StepTimes::kPhases>
      phase_seconds{};  ///< Of the step before this one ended: see StepPhase.
  /// Of this rank since the previous step ended, where anything is offloaded.
  std::optional<OffloadUse> offload;
  std::optional<UpdateUse> updates;  ///< Of this rank, where updates are delayed.
};

struct EngineOptions : ShardedModelOptions {
  /// Changes declared parameters before they are laid out: freezing, weight decay.
  std::function<void(ParameterSpec&)> adjust;
  /// Tokens of a sample, when known before the first batch: the memory plan is then made at once.
  /// State the most there will be where a budget leaves little room: ranks plan gathers together,
  /// so the first plan stays.
  std::int64_t sequence_length = 0;
  /// The memory of which is in the plan from the start; else it joins when the first call comes.
  CheckpointUse checkpoints;
};

class Engine {
 public:
  /// Collective. `module`, `mesh` and `device` must outlive the engine. Throws ConfigError for what
  /// cannot be trained.
  /// Here as in every call: arguments are refused before any work begins, and nothing has changed
  /// then; a rank that fails later fails the world.
  Engine(const TrainSettings& settings, const Module& module, const Mesh& mesh, Device& device,
         const EngineOptions& options = {});
  ~Engine();

  /// A whole step: forward and backward of settings.accumulation micro-batches, then the
  /// update.
  StepResult train_batch(std::span<const MicroBatch> micro_batches);
  /// Steps from here on have `samples` samples of all replicas: another number of micro-batches of
  /// the same size. Between steps; throws Error(kInvalid) where they do not divide it. Collective.
  void set_train_batch_size(std::int64_t samples);
  /// Micro-batches of a step.
  std::int64_t accumulation() const { return settings_.accumulation; }

  /// In a pipeline of stages, or with a schedule of the options, a step is run as a whole:
  /// train_batch() alone trains, and forward(), backward(), step() and what goes with them throw
  /// Error(kInvalid).
  bool runs_whole_steps() const;
  /// Whether this rank looks at what is in the batches that it is given, rather than at their
  /// shapes: not a pipeline's stage in between.
  bool reads_batches() const;

  /// Enqueues forward of one micro-batch. Each has one backward, and the last one of an
  /// accumulation window (is_gradient_accumulation_boundary() at the call of forward) is followed
  /// by step(); otherwise Error(kInvalid).
  void forward(const MicroBatch& batch);
  /// Enqueues backward of the last forward; gradients are reduced as the stage asks. Throws without
  /// a forward.
  void backward();
  /// Ends a micro-batch; at the accumulation boundary clips, updates and advances the schedule.
  /// Throws without a backward since the last step.
  void step();
  /// Mean token loss of this rank's last forward, NaN without a target; waits for it.
  double loss();

  bool is_gradient_accumulation_boundary() const { return window_->at_boundary(); }
  /// Overrides the boundary until called again (settings.managed_accumulation).
  void set_gradient_accumulation_boundary(bool boundary) { window_->set_boundary(boundary); }
  /// While `body` runs, backward only accumulates on this rank (stages 0 and 1; else Error). No
  /// step inside.
  void no_sync(const std::function<void()>& body);

  /// While `body` runs (forward and backward of several micro-batches), gradients are only added up
  /// on this rank; their sum is reduced once, at its end, also when `body` throws: what backward
  /// has finished is part of the window. ZeRO stages 1 to 3. No step inside.
  void coalesce_grad_reduction(const std::function<void()>& body);

  /// Writes the training parameters, whole, to folder/filename as safetensors, and what the module
  /// writes beside them; rank 0 writes, every rank calls. With sharded parameters it needs
  /// gather_to_save, else it logs so and returns false. Throws IoError.
  bool save_16bit_model(const std::string& folder,
                        const std::string& filename = "model.safetensors");

  /// Applies what delayed updates have waiting: at the end of a run, before the model is exported.
  /// Every rank calls, between accumulation windows. See ShardedModel.
  void flush_updates();

  /// DeepSpeed's offload_states and reload_states: see ShardedModel. Every rank calls both, between
  /// accumulation windows; the time between them is not part of a step's seconds.
  void offload_states(const MovableStates& which = {});
  void reload_states();
  /// Writes parameters, optimizer states and where the run is to folder/tag, whole or not at all:
  /// engine/checkpoint/checkpoint.h. Every rank calls, between two accumulation windows. Returns
  /// the checkpoint's folder. What fails on one rank is thrown on all, and training may go on.
  std::string save_checkpoint(const std::string& folder, const SaveCheckpointOptions& options = {});
  /// Waits for an asynchronous save; what it threw is thrown here. Every rank calls.
  void finish_checkpoint();
  /// Goes on from a checkpoint of ours, saved on any mesh, at any stage and on any tier. Every rank
  /// calls, between two accumulation windows. Where the folder has none (no tag given, no file
  /// `latest`), a warning says so and the path is "". Throws, with nothing changed, for one that
  /// does not go with the model.
  LoadedCheckpoint load_checkpoint(const std::string& folder,
                                   const LoadCheckpointOptions& options = {});
  /// The same from what any reader found.
  LoadedCheckpoint load_checkpoint(const SavedState& saved, const LoadCheckpointOptions& options);

  /// Mean loss over the batches of all ranks that have a target, without gradients; NaN when none
  /// has.
  double eval_batch(std::span<const MicroBatch> micro_batches);
  /// Logits [V] of the position after the last of `tokens`. Collective at stage 3: every rank gives
  /// the same tokens.
  std::vector<float> next_logits(std::span<const std::int32_t> tokens);

  /// Of the last step, before clipping; infinite after a skipped step, NaN before the first.
  double get_global_grad_norm() const { return last_.grad_norm; }
  std::vector<double> get_lr() const;  ///< What the next step uses, per optimizer group.
  const StepResult& last_step() const { return last_; }
  bool was_step_applied() const { return last_.step > 0 && !last_.skipped; }
  std::int64_t global_steps() const { return state().steps; }
  std::int64_t global_samples() const { return state().samples; }
  std::int64_t micro_steps() const { return state().micro_steps; }
  std::int64_t skipped_steps() const { return state().skipped_steps; }
  double loss_scale() const { return state().scaler.scale; }
  RunState& state() { return model_->state(); }
  const RunState& state() const { return model_->state(); }

  ShardedModel& model() { return *model_; }
  bool leads() const { return mesh_.leads(); }  ///< Tells what is told once.
  /// Bytes by tier and category for micro-batches of [batch, sequence] tokens.
  MemoryEstimate memory_estimate(std::int64_t batch, std::int64_t sequence) const;

 private:
  static void require_batch(const MicroBatch& batch);
  void accept(std::span<const MicroBatch> batches);
  void require_same_inputs(const MicroBatch& batch);
  void require_same_inputs(const MicroBatch& batch, Axis axis, const char* why);
  TensorParallel tensor_parallel() const;
  TensorParallel evaluation_tensor_parallel() const;
  SequenceParallel sequence_parallel() const;
  void plan_for(const Shape& shape, bool whole = false);
  void plan_checkpoints();
  ActivationBytes activation_bytes(const Shape& shape, bool whole) const;
  const Borders& borders(const Shape& shape, bool trains, bool whole) const;
  void require_piecewise(const char* call) const;
  void end_micro_batch();
  void require_host_room(const ActivationBytes& activations) const;
  void begin_micro_batch(int index, const MicroBatch& batch, bool last);
  void run_forward(const MicroBatch& batch, const AccumulationWindow::MicroStep& micro);
  void run_backward();
  void run_schedule(std::span<const MicroBatch> micro_batches);
  void run_ops(std::span<const Op> ops, int first_micro_batch);
  Values run_evaluation(const MicroBatch& batch, bool whole = false);
  static std::optional<double> mean_loss(const class Readback& loss);
  RandomKey random_key(const MicroBatch& batch, int micro_batch) const;
  void require_trainable() const;
  void optimizer_step(const AccumulationWindow::Ended& window);
  void require_between_windows(const char* call) const;
  CheckpointSaver& saver();
  void poll_checkpoint();
  void without_boundary(const char* scope, const std::function<void()>& body);

  TrainSettings settings_;
  const Module& module_;
  const Mesh& mesh_;
  Device& device_;
  EngineOptions options_;
  // For blocks, on the compute stream and beside it; null: alone, or all on the former.
  std::unique_ptr<Communicator> tp_group_;
  std::unique_ptr<Communicator> tp_beside_;
  std::unique_ptr<Communicator> sp_group_;  ///< For blocks, on the compute stream; null: alone.
  bool compared_inputs_ = false;
  std::unique_ptr<ShardedModel> model_;
  std::unique_ptr<StageLinks> links_;  ///< Null where there is one stage.
  std::unique_ptr<class BlockRunner> runner_;
  /// Between stages, by the shape of a micro-batch, whether tensor parallelism splits its
  /// sequences, and whether it is whole on every rank.
  mutable std::map<std::tuple<std::int64_t, std::int64_t, bool, bool>, Borders> borders_;
  StepResult last_;
  std::vector<Shape> planned_shapes_;  ///< Of batches; none holds another.
  std::vector<Shape> planned_whole_;   ///< The same of those that ranks of sp do not share.
  std::int64_t last_step_end_ns_ = 0;
  OffloadUse offload_before_;
  int micro_batch_ = 0;  ///< Of the last forward, within its window.
  std::optional<AccumulationWindow> window_;
  std::unique_ptr<CheckpointSaver> saver_;  ///< Null until the first save.
};

class TrainingSession {
 public:
  TrainingSession(std::unique_ptr<Mesh> mesh, std::unique_ptr<Device> device,
                  std::unique_ptr<Engine> engine)
      : mesh_(std::move(mesh)), device_(std::move(device)), engine_(std::move(engine)) {}
  Engine& operator*() { return *engine_; }
  Engine* operator->() { return engine_.get(); }

 private:
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Engine> engine_;
};
/// Makes the mesh, a device with `threads` threads of the host for this rank, and an engine on it.
/// Ranks that share a machine take its GPUs in turn. Collective.
TrainingSession initialize(const TrainSettings& settings, const Module& module, Communicator& world,
                           const EngineOptions& options = {}, int threads = 1,
                           DeviceChoice device = DeviceChoice::cpu);

}  // namespace zero3d
