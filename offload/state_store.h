// Where the records of the optimizer's state live. A store hands out tiles, a few at a time, in
// slots: it may keep everything at hand, or bring a tile from another tier and take it back when
// the work on it is done. TileWindow decides when.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/offload/record_layout.h"

namespace zero3d {

class StateStore {
 public:
  virtual ~StateStore() = default;
  /// Tiles that can be open at once; 1 where everything is at hand and nothing to be read ahead.
  virtual int slots() const = 0;
  /// Starts to bring a tile's records into a slot (from 0) that is closed, after all that close()
  /// said of the slot and of the tile. Returns the bytes, to be used by work that waits for `ready`
  /// if that is recorded.
  virtual View open(int slot, const Tile& tile, Event& ready) = 0;
  /// The work that uses the slot's tile ends at `used`: its bytes may be taken back after it.
  virtual void close(int slot, const Tile& tile, const Event& used) = 0;
};

/// Makes the store of one rank. `records[u]` is the layout of unit u's state, empty for frozen
/// units; it outlives the store. What the bytes hold at first does not matter.
using StateStoreFactory =
    std::function<std::unique_ptr<StateStore>(Device&, const std::vector<RecordLayout>& records)>;

/// Keeps everything in device memory.
std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    const std::vector<RecordLayout>& records);

}  // namespace zero3d
