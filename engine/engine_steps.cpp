// Steps that are run as a whole: of pipelines, and of schedules that the options give.
#include <algorithm>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/block_runner.h"
#include "zero3d/engine/engine.h"
#include "zero3d/engine/memory_fit.h"

namespace zero3d {

/// Of a model that is in one piece: none.
const Borders& Engine::borders(const Shape& shape, bool whole) const {
  const auto [entry, made] = borders_.try_emplace({shape[0], shape[1], whole});
  if (made)
    entry->second =
        borders_of(module_, model_->plan(), tensor_parallel(),
                   whole ? SequenceParallel() : sequence_parallel(), shape[0], shape[1]);
  return entry->second;
}

bool Engine::runs_whole_steps() const {
  return options_.schedule || model_->plan().pipeline.whole_steps();
}

bool Engine::reads_batches() const {
  const std::vector<Chunk> chunks = model_->plan().stage.all_chunks();
  return std::any_of(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
    if (chunk.from < 0) return true;
    if (borders_.empty()) return true;  // nobody knows yet
    return uses_batch(borders_.begin()->second.at(chunk.first_block));
  });
}

void Engine::require_piecewise(const char* call) const {
  if (!runs_whole_steps()) return;
  const int stages = mesh_.size(Axis::pp);
  throw_invalid(concat(call,
                       stages > 1 ? concat(" in a pipeline of ", stages, " stages")
                                  : std::string(" with a schedule of whole steps"),
                       ": call train_batch(), which runs the micro-batches of a step together"));
}

/// All micro-batches of a window, in the order that the options ask for.
void Engine::run_schedule(std::span<const MicroBatch> micro_batches) {
  const auto count = static_cast<int>(micro_batches.size());
  model_->begin_training(0);
  for (int i = 0; i < count; ++i)
    begin_micro_batch(i, micro_batches[static_cast<std::size_t>(i)], i + 1 == count);
  run_ops(model_->plan().training, 0);
  model_->times().stop(model_->compute());
  std::int64_t tokens = 0;
  for (const MicroBatch& batch : micro_batches) tokens += batch.tokens.numel();
  window_->whole(tokens * mesh_.size(Axis::dp));
}

void Engine::set_train_batch_size(std::int64_t samples) {
  window_->require_start();
  const std::int64_t unit = settings_.micro_batch * mesh_.size(Axis::dp);
  if (samples < unit || samples % unit != 0) {
    throw_invalid(concat("set_train_batch_size(", samples,
                         "): a step takes whole micro-batches of ", settings_.micro_batch,
                         " samples on ", mesh_.size(Axis::dp), " replicas, a multiple of ", unit));
  }
  TrainSettings settings = settings_;
  settings.accumulation = samples / unit;
  require_in_range(settings);
  model_->set_accumulation(settings.accumulation);
  settings_ = std::move(settings);
  window_.emplace(model_->state(), settings_.accumulation, settings_.managed_accumulation,
                  state().micro_steps);
  planned_shapes_.clear();
  planned_whole_.clear();
}

}  // namespace zero3d
