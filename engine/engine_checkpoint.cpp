// Checkpoints of an engine, by DeepSpeed's calls.
#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/checkpoint.h"
#include "zero3d/engine/checkpoint/checkpoint_folder.h"
#include "zero3d/engine/checkpoint/checkpoint_reader.h"
#include "zero3d/engine/checkpoint/try_together.h"
#include "zero3d/engine/engine.h"
#include "zero3d/engine/pause.h"

namespace zero3d {

/// What has been done of a window is in no checkpoint.
void Engine::require_between_windows(const char* call) const {
  if (window_->at_start()) return;
  throw_invalid(concat(call,
                       " within an accumulation window: its gradients are in no checkpoint; finish "
                       "it with forward, backward and step first"));
}

CheckpointSaver& Engine::saver() {
  if (saver_ == nullptr) saver_ = std::make_unique<CheckpointSaver>(*model_);
  return *saver_;
}

std::string Engine::save_checkpoint(const std::string& folder,
                                    const SaveCheckpointOptions& options) {
  model_->require_made();
  require_between_windows("save_checkpoint()");
  const Pause pause(mesh_.world(), *model_, last_step_end_ns_);
  std::string path = saver().save(folder, options);
  if (settings_.offload.on()) offload_before_ = model_->offload_use();
  return path;
}

void Engine::finish_checkpoint() {
  if (saver_ != nullptr) saver_->finish();
}

/// After a step: a save under way that all ranks have written is ended. A failed one does not end
/// training.
void Engine::poll_checkpoint() {
  if (saver_ == nullptr || !saver_->pending()) return;
  try {
    saver_->poll();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    if (mesh_.leads()) log_warning(concat("a checkpoint was not written: ", error.what()));
  }
}

LoadedCheckpoint Engine::load_checkpoint(const std::string& folder,
                                         const LoadCheckpointOptions& options) {
  model_->require_made();
  require_between_windows("load_checkpoint()");
  std::unique_ptr<SavedState> saved;
  const std::vector<std::string> found = try_together(mesh_.world(), [&] {
    const std::string path = find_checkpoint(folder, options.tag);
    if (options.tag.empty() && path == folder && !is_checkpoint(path)) return std::string("none");
    saved = std::make_unique<CheckpointReader>(path);
    return std::string("read");
  });
  for (const std::string& other : found) {
    if (other == "read") continue;
    if (mesh_.leads())
      log_warning(concat(folder, " has no file ", kLatestName,
                         " and no checkpoint: nothing is loaded; give a tag to load another"));
    return {};
  }
  return load_checkpoint(*saved, options);
}

LoadedCheckpoint Engine::load_checkpoint(const SavedState& saved,
                                         const LoadCheckpointOptions& options) {
  model_->require_made();
  require_between_windows("load_checkpoint()");
  if (saver_ != nullptr) {
    saver_->finish();
    saver_->release_memory();
  }
  const Pause pause(mesh_.world(), *model_, last_step_end_ns_);
  LoadedCheckpoint loaded = zero3d::load_checkpoint(*model_, saved, options);
  if (settings_.offload.on()) offload_before_ = model_->offload_use();
  return loaded;
}

}  // namespace zero3d
