// States that leave the device between steps, for whoever needs its memory meanwhile, and come
// back.
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

void ShardedModel::offload_states(const MovableStates& which) {
  require_made();
  streams_.synchronize();
  const MemoryEstimate before = memory_;
  const auto moves = [this](Category category) {
    memory_[Tier::pinned][category] += device_.memory().use().categories[category].current;
  };
  if (which.optimizer_states) moves(Category::optimizer_states);
  if (which.parameters) moves(Category::parameters);
  try {
    memory_.require_within(-1, host_budget_);
    moved_ = which;
    if (which.gradients) reducer_->release_memory();
    if (which.optimizer_states) optimizer_->move_states(Tier::pinned);
    if (which.parameters) store_->move_to(Tier::pinned);
  } catch (...) {
    reload_states();
    memory_ = before;
    throw;
  }
}

void ShardedModel::reload_states() {
  const MemoryUse before = device_.memory().use();
  if (moved_.parameters) store_->move_to(Tier::device);
  if (moved_.optimizer_states) optimizer_->move_states(Tier::device);
  if (moved_.gradients) reducer_->take_memory();
  moved_ = kNothingMoved;
  const MemoryUse after = device_.memory().use();
  for (const Category category : {Category::optimizer_states, Category::parameters}) {
    memory_[Tier::pinned][category] -=
        after.categories[category].current - before.categories[category].current;
  }
}

}  // namespace zero3d
