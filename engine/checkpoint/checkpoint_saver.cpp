// CheckpointSaver: the meetings of the ranks while they save.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/checkpoint.h"
#include "zero3d/engine/checkpoint/checkpoint_folder.h"
#include "zero3d/engine/checkpoint/merge_manifests.h"
#include "zero3d/engine/checkpoint/rank_file.h"
#include "zero3d/engine/checkpoint/state_loader.h"
#include "zero3d/engine/checkpoint/state_writer.h"
#include "zero3d/engine/checkpoint/try_together.h"

namespace zero3d {
namespace {

SavedScale scale_of(const TrainSettings& settings) {
  if (!settings.precision.loss_scale) return SavedScale::none;
  return settings.precision.loss_scale->static_scale > 0 ? SavedScale::fixed : SavedScale::dynamic;
}

SavedRun run_of(const ShardedModel& model, const JsonValue& client_state) {
  SavedRun run;
  run.state = model.state();
  run.scale = scale_of(model.train_settings());
  const Mesh& mesh = model.mesh();
  run.mesh = {mesh.size(Axis::dp), mesh.size(Axis::tp), mesh.size(Axis::pp), mesh.size(Axis::sp)};
  run.settings = describe(model.train_settings());
  run.client_state = client_state;
  return run;
}

/// The first rank's tag, which goes for all; what is said of others is up to the settings.
std::string agree_on_tag(Communicator& world, const std::string& tag, TagValidation validation) {
  const std::vector<std::string> all = world.exchange(tag);
  if (validation == TagValidation::ignore) return all[0];
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::string message =
        concat("rank ", rank, " saves under the tag ", all[rank], ", and rank 0 under ", all[0]);
    if (validation == TagValidation::fail)
      throw_invalid(concat(message, "; give all ranks the same (checkpoint.tag_validation)"));
    if (world.rank() == 0) log_warning(concat(message, ", which goes for all"));
    break;
  }
  return all[0];
}

}  // namespace

void require_nothing_delayed(const ShardedModel& model, const char* call) {
  if (!model.train_settings().delayed_updates.on()) return;
  throw_invalid(concat(call,
                       " with TrainSettings::delayed_updates: the gradients that wait, and which "
                       "blocks are updated how often, are in no checkpoint; set update_every to 0, "
                       "or export the model (Engine::save_16bit_model)"));
}

struct CheckpointSaver::Pending {
  std::string folder;
  std::string tag;
  std::string target;
  SaveCheckpointOptions options;
  SavedRun run;
  std::optional<CheckpointFolder> made;  ///< By rank 0.
  std::unique_ptr<StateWriter> writer;
};

std::int64_t checkpoint_bytes(const ShardedModel& model, const CheckpointUse& use,
                              std::int64_t room) {
  std::int64_t bytes = use.loads ? load_bytes(model.plan()) : 0;
  if (!use.saves && !use.saves_asynchronously) return bytes;
  SaveMemory save = StateWriter::plan(model, false, use.saves_asynchronously, room);
  if (save.total() > room) save = StateWriter::plan(model, false, false, room);
  return std::max(bytes, save.total());
}

std::int64_t least_checkpoint_bytes(const ZeroPlan& plan, const CheckpointUse& use) {
  const std::int64_t loads = use.loads ? load_bytes(plan) : 0;
  constexpr std::int64_t kLarge = std::int64_t{1} << 62;  // a file of any size
  return std::max(loads, use.saves ? RankFile::some_buffers(kLarge, 0) : 0);
}

CheckpointSaver::CheckpointSaver(ShardedModel& model) : model_(model) {}

CheckpointSaver::~CheckpointSaver() {
  if (pending_ != nullptr)
    log_warning(concat("the checkpoint ", pending_->target,
                       " was still being written, and is lost: finish it before the end"));
}

std::string CheckpointSaver::save(const std::string& folder, const SaveCheckpointOptions& options) {
  require_nothing_delayed(model_, "save_checkpoint()");
  if (!options.client_state.is_object())
    throw_invalid(
        concat("client_state is ", options.client_state.excerpt(), "; expected an object"));
  if (options.keep_last < 0)
    throw_invalid(concat("keep_last is ", options.keep_last, "; expected 0 or more"));
  if (pending()) {
    try {
      finish();
    } catch (const CommError&) {
      throw;
    } catch (const Error& error) {
      if (model_.mesh().leads())
        log_warning(concat("the checkpoint before was not written: ", error.what()));
    }
  }
  begin(folder, options);
  const std::string target = pending_->target;
  if (!pending_->options.asynchronous) complete();
  return target;
}

void CheckpointSaver::begin(const std::string& folder, const SaveCheckpointOptions& options) {
  Communicator& world = model_.mesh().world();
  auto pending = std::make_unique<Pending>();
  pending->folder = folder;
  pending->options = options;
  pending->run = run_of(model_, options.client_state);
  const std::string tag = options.tag.empty() ? tag_of_step(model_.state().steps) : options.tag;
  pending->tag = agree_on_tag(world, tag, model_.train_settings().tag_validation);
  pending->target = (std::filesystem::path(folder) / pending->tag).string();
  const std::string writing = try_together(world, [&] {
    if (world.rank() != 0) return std::string();
    pending->made.emplace(folder, pending->tag);
    return pending->made->writing();
  })[0];
  std::int64_t room = model_.checkpoint_room(options.asynchronous);
  SaveMemory memory =
      StateWriter::plan(model_, options.exclude_frozen_parameters, options.asynchronous, room);
  if (options.asynchronous) {
    const std::vector<std::string> fits = world.exchange(memory.total() <= room ? "it does" : "");
    if (std::find(fits.begin(), fits.end(), "") != fits.end()) {
      pending->options.asynchronous = false;
      room = model_.checkpoint_room(false);
      memory = StateWriter::plan(model_, options.exclude_frozen_parameters, false, room);
      if (world.rank() == 0 && !std::exchange(told_, true))
        log_info("host memory has no room for a copy of the state: training waits for the save");
    }
  }
  pending_ = std::move(pending);
  try {
    try_together(world, [&] {
      model_.plan_checkpoints(memory.total(), pending_->options.asynchronous);
      pending_->writer = std::make_unique<StateWriter>(
          model_, writing, options.exclude_frozen_parameters, memory, std::move(kept_));
      return std::string();
    });
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    abandon();
    throw;
  }
}

/// All ranks are done with the folder before it goes.
void CheckpointSaver::abandon() {
  pending_->writer.reset();
  model_.mesh().world().exchange("");
  pending_.reset();
}

bool CheckpointSaver::poll() {
  if (!pending()) return false;
  const std::vector<std::string> all =
      model_.mesh().world().exchange(pending_->writer->done() ? "done" : "");
  if (std::find(all.begin(), all.end(), "") != all.end()) return false;
  complete();
  return true;
}

void CheckpointSaver::finish() {
  if (pending()) complete();
}

void CheckpointSaver::complete() {
  Communicator& world = model_.mesh().world();
  try {
    const bool leads_part =
        model_.mesh().rank(Axis::zero) == 0 && model_.mesh().rank(Axis::tp) == 0;
    const std::vector<std::string> parts = try_together(world, [&] {
      CheckpointManifest part = pending_->writer->wait();
      if (pending_->options.asynchronous) kept_ = pending_->writer->take_memory();
      if (!leads_part) drop_without_pieces(part);
      if (world.rank() == 0) part.run = pending_->run;
      return concat(leads_part ? kLeadsPart : kOfPart, to_text(part));
    });
    try_together(world, [&] {
      if (world.rank() != 0) return std::string();
      pending_->made->commit(to_text(merge_manifests(parts, pending_->run)),
                             pending_->options.save_latest);
      if (pending_->options.keep_last > 0)
        keep_last(pending_->folder, pending_->options.keep_last, pending_->tag);
      return std::string();
    });
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    abandon();
    throw;
  }
  pending_.reset();
}

}  // namespace zero3d
