#include "zero3d/offload/tile_window.h"

#include <algorithm>

namespace zero3d {

TileWindow::TileWindow(StateStore& store, std::vector<Tile> tiles, Stream& stream, int most)
    : store_(store),
      tiles_(std::move(tiles)),
      stream_(stream),
      reach_(static_cast<std::size_t>(std::min(store.window(), most))),
      slots_(static_cast<std::size_t>(store.slots())) {}

/// Whether the tile shares elements with one that comes before it and is not released.
bool TileWindow::in_use(std::size_t index) const {
  const Tile& tile = tiles_[index];
  return std::any_of(tiles_.begin() + static_cast<std::ptrdiff_t>(current_),
                     tiles_.begin() + static_cast<std::ptrdiff_t>(index), [&](const Tile& other) {
                       return other.unit == tile.unit && other.begin < tile.begin + tile.count &&
                              tile.begin < other.begin + other.count;
                     });
}

void TileWindow::read_ahead() {
  const std::size_t end = std::min(tiles_.size(), current_ + reach_);
  for (; opened_ < end && !in_use(opened_); ++opened_) {
    const std::size_t slot = opened_ % slots_.size();
    slots_[slot].ready = Event();
    slots_[slot].bytes =
        store_.open(static_cast<int>(slot), tiles_[opened_], slots_[slot].ready, true);
  }
}

void TileWindow::abandon() {
  for (; current_ < opened_; ++current_) {
    const std::size_t slot = current_ % slots_.size();
    Event read = slots_[slot].ready;
    if (!read.recorded()) stream_.record(read);
    store_.close(static_cast<int>(slot), tiles_[current_], read, false);
  }
}

View TileWindow::acquire() {
  read_ahead();
  const Slot& slot = slots_[current_ % slots_.size()];
  if (slot.ready.recorded()) stream_.wait(slot.ready);
  return slot.bytes;
}

void TileWindow::release(bool changed) {
  Event used;
  stream_.record(used);
  store_.close(static_cast<int>(current_ % slots_.size()), tiles_[current_], used, changed);
  ++current_;
}

}  // namespace zero3d
