// Where the optimizer's state lives. It is only ever reached tile by tile: fetch() before an
// update, commit() after it, so that a store may keep it in another tier and move it meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zero3d/device/device.h"

namespace zero3d {

/// A run of one unit's shard that is updated together; begin and count are multiples of 1,024
/// elements.
struct Tile {
  int unit = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

struct TileViews {
  View master;               ///< Undefined when the training parameter is its own master.
  std::vector<View> states;  ///< In the rule's order.
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  /// Views for work on `stream`, which waits for them if it must.
  virtual TileViews fetch(Stream& stream, const Tile& tile) = 0;
  /// Work that wrote the tile's views is enqueued on `stream`.
  virtual void commit(Stream& stream, const Tile& tile) = 0;
  virtual std::int64_t bytes() const = 0;
};

struct StateShape {
  DType dtype = DType::f32;
  float initial = 0;  ///< Every element's value before the first update.
};

struct UnitStateShape {
  std::int64_t elements = 0;  ///< Of the shard; 0: no state.
  bool master = false;        ///< Keep a master (the training parameter is not its own).
  DType master_dtype = DType::f32;
  std::vector<StateShape> states;
};

/// Keeps everything in device memory, states at their initial values.
std::unique_ptr<StateStore> make_device_state_store(Device& device, Stream& stream,
                                                    const std::vector<UnitStateShape>& units);

}  // namespace zero3d
