// Saving and loading of a model that trains, by all of its ranks: what is written where is decided
// in state_writer and checkpoint_folder, what goes with what in state_loader.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/engine/checkpoint/saved_state.h"
#include "zero3d/engine/sharded_model.h"
#include "zero3d/engine/train_settings.h"

namespace zero3d {

struct SaveCheckpointOptions {
  std::string tag;  ///< "": tag_of_step().
  /// Whatever the caller wants back: an object.
  JsonValue client_state = JsonValue::make_object();
  bool save_latest = true;
  bool exclude_frozen_parameters = false;
  /// Training may go on while files are written; CheckpointSaver::poll() and finish() end it.
  bool asynchronous = false;
  int keep_last = 0;  ///< Older checkpoints of steps are removed down to this many; 0: none is.
};

struct LoadCheckpointOptions {
  std::string tag;                ///< "": the one that `latest` names.
  bool load_module_only = false;  ///< Weights, and nothing else.
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  /// Weights are there already: the model's source was this checkpoint.
  bool parameters_are_there = false;
  // Numbers of the run that come from the checkpoint; else what the run has stays.
  bool load_steps = true;          ///< Steps and samples.
  bool load_loss_scale = true;     ///< With the optimizer's states.
  bool load_data_position = true;  ///< With load_steps or without.
  bool load_seed = true;
};

/// What a run will ask for.
struct CheckpointUse {
  bool saves = false;
  bool saves_asynchronously = false;
  bool loads = false;
};

struct LoadedCheckpoint {
  std::string path;  ///< "" when there was none to load.
  JsonValue client_state = JsonValue::make_object();
  /// What the run does otherwise than the one that was saved, a line each; the run's own settings
  /// win.
  std::vector<std::string> changes;
};

/// Throws where updates are delayed: gradients that wait, which blocks the device updates and how
/// often each block was updated are in no checkpoint. `call`: what was asked for.
void require_nothing_delayed(const ShardedModel& model, const char* call);

/// Pinned bytes that saves and loads take of this rank beside the model, where the host has `room`:
/// ShardedModel::plan_checkpoints has them in the plan before the first comes.
std::int64_t checkpoint_bytes(const ShardedModel& model, const CheckpointUse& use,
                              std::int64_t room);
/// The least that will do, before there is a model.
std::int64_t least_checkpoint_bytes(const ZeroPlan& plan, const CheckpointUse& use);

/// Saves one model. Every call but the constructor is collective and host-blocking; what fails on
/// one rank is thrown as an Error on all, the folder has what it had, and training may go on.
class CheckpointSaver {
 public:
  explicit CheckpointSaver(ShardedModel& model);
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Between two windows. Ends the save before, where that is still under way. Returns the folder.
  std::string save(const std::string& folder, const SaveCheckpointOptions& options);
  /// A save is under way, the same on all ranks.
  bool pending() const { return pending_ != nullptr; }
  /// Ends it if all ranks have written; whether it did.
  bool poll();
  /// Waits for it and ends it.
  void finish();
  /// The memory of an asynchronous save is kept for the next one; this gives it back.
  void release_memory() { kept_ = Tensor(); }

 private:
  struct Pending;
  void begin(const std::string& folder, const SaveCheckpointOptions& options);
  void abandon();
  void complete();

  ShardedModel& model_;
  std::unique_ptr<Pending> pending_;
  Tensor kept_;
  bool told_ = false;  ///< That there is no room to save beside training.
};

/// Between two windows. Refused on all ranks, before anything changes, when it does not go with the
/// model; what fails later fails the world. `accumulation`: micro-batches of the run's windows.
LoadedCheckpoint load_checkpoint(ShardedModel& model, const SavedState& saved,
                                 const LoadCheckpointOptions& options);

/// What differs between two describe(TrainSettings) of what a configuration rules when a run is
/// resumed: batch, clipping, optimizer and schedule, a line each.
std::vector<std::string> changed_settings(const std::string& before, const std::string& now);

}  // namespace zero3d
