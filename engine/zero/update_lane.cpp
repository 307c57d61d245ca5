#include "zero3d/engine/zero/update_lane.h"

namespace zero3d {

LaneWalk::LaneWalk(UpdateLane& lane, Stream& stream, std::vector<Tile> tiles,
                   OffloadedGradients* gradients, bool gradients_ahead)
    : state_window_(*lane.store, tiles, stream, INT_MAX, lane.clock.get()), offloaded_(gradients) {
  if (gradients != nullptr)
    gradient_window_.emplace(gradients->store(), std::move(tiles), stream,
                             gradients_ahead ? INT_MAX : 1, lane.clock.get());
}

void LaneWalk::open() {
  states_ = state_window_.acquire();
  if (gradient_window_) gradients_ = gradient_window_->acquire();
}

void LaneWalk::close(bool changed) {
  state_window_.release(changed);
  if (gradient_window_) gradient_window_->release(false);
}

ConstView LaneWalk::gradient(GradientReducer& reducer, const Tile& tile, std::int64_t begin,
                             std::int64_t count) const {
  if (offloaded_ == nullptr) return reducer.reduced(tile.unit).flat(begin, count);
  return offloaded_->records(tile.unit).view(gradients_, tile.begin, 0, begin, count);
}

}  // namespace zero3d
