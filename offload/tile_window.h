// The moving window over a planned sequence of tiles: reads ahead of the tile in use as far as the
// store has slots, and lets go of it for the write behind.
#pragma once

#include <climits>
#include <cstddef>
#include <vector>

#include "zero3d/offload/state_store.h"

namespace zero3d {

class TileWindow {
 public:
  /// Over `tiles`, each used once in this order by work on `stream`. Opens nothing yet, and never
  /// more than `most` tiles at a time.
  TileWindow(StateStore& store, std::vector<Tile> tiles, Stream& stream, int most = INT_MAX);

  /// Begins the reads of the next tiles, as far as the window reaches.
  void read_ahead();
  /// The next tile's records, for work enqueued from here on; the reads of the tiles after it have
  /// begun, up to one that is itself in use before.
  View acquire();
  /// What was read ahead is not used after all.
  void abandon();
  /// All work on that tile is enqueued; it may have changed it.
  void release(bool changed = true);

 private:
  bool in_use(std::size_t index) const;

  struct Slot {
    View bytes;
    Event ready;
  };
  StateStore& store_;
  std::vector<Tile> tiles_;
  Stream& stream_;
  const std::size_t reach_;  ///< Tiles open at a time.
  std::vector<Slot> slots_;
  std::size_t current_ = 0;
  std::size_t opened_ = 0;  ///< Tiles before this one are open or were.
};

}  // namespace zero3d
