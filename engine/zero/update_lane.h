// Where a part of the units is updated: on the device or on the host. A lane brings a tile's state
// and gradient to its stream, and takes new parameters to where their shard lies. Used from one
// host thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/parameter_pieces.h"
#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/offload/tile_window.h"

namespace zero3d {

struct UpdateLane {
  Stream* stream = nullptr;
  std::unique_ptr<StateStore> store;
  /// Null where the shards of its units lie in the lane's own memory, to be updated in place.
  std::unique_ptr<ParameterPieces> pieces;
  std::unique_ptr<WaitClock> clock;  ///< Of waits for tiles, on the host; else null.
};

/// One walk of a lane over tiles, in order.
class LaneWalk {
 public:
  /// Gradients are opened where the lane's units have theirs in a store; not ahead of their use if
  /// others are written there between two tiles.
  LaneWalk(UpdateLane& lane, Stream& stream, std::vector<Tile> tiles,
           OffloadedGradients* gradients = nullptr, bool gradients_ahead = true);

  /// The first tiles' state may come; or need not have.
  void read_ahead() { state_window_.read_ahead(); }
  void abandon() { state_window_.abandon(); }
  void open();
  /// The state of the open tile may have changed, or has not.
  void close(bool changed = true);
  const View& states() const { return states_; }

  /// Elements [begin, begin + count) of the gradient of the open tile, which lie in one record.
  ConstView gradient(GradientReducer& reducer, const Tile& tile, std::int64_t begin,
                     std::int64_t count) const;

 private:
  TileWindow state_window_;
  OffloadedGradients* offloaded_;
  std::optional<TileWindow> gradient_window_;
  View states_;
  View gradients_;
};

}  // namespace zero3d
