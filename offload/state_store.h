// Where the records of the optimizer's state live. A store hands out tiles, a few at a time, in
// slots: it may keep everything at hand, or bring a tile from another tier and take it back when
// the work on it is done. TileWindow decides when.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/offload/io_options.h"
#include "zero3d/offload/record_layout.h"

namespace zero3d {

class StateStore {
 public:
  virtual ~StateStore() = default;
  /// Tiles that can be open at once; 1 where everything is at hand and nothing to be read ahead.
  virtual int slots() const = 0;
  /// Tiles that are to be open at once: those after the one in use are read ahead.
  virtual int window() const { return slots(); }
  /// Starts to bring a tile's records into a slot (from 0) that is closed, after all that close()
  /// said of the slot and of the tile; without `contents` they are about to be written all over.
  /// Returns the bytes, to be used by work that waits for `ready` if that is recorded.
  virtual View open(int slot, const Tile& tile, Event& ready, bool contents) = 0;
  /// The work that uses the slot's tile ends at `used`: its bytes may be taken back after it, and
  /// need not be kept where that work changed nothing.
  virtual void close(int slot, const Tile& tile, const Event& used, bool changed) = 0;
  /// Whether tiles lie on drives, from where snapshot() copies them.
  virtual bool on_drives() const { return false; }
  /// Starts to copy a tile's records, as every close() so far leaves them, to `target`, host memory
  /// of the caller, once `free` is passed if that is recorded; returns the point where they are
  /// there. Nothing of a later close() reaches the drive before it.
  virtual Event snapshot(const Tile& tile, const View& target, const Event& free);
  /// What lies in device memory goes to memory of `tier`, or comes back; no tile is open meanwhile,
  /// and nothing that is enqueued uses one. Blocks the host. Throws OutOfMemory, with part of it
  /// moved.
  virtual void move_to(Stream& /*stream*/, Tier /*tier*/) {}
  /// Of its drives, where it has any.
  virtual IoCounters counters() const { return {}; }
};

/// Makes the store of one rank. `records[u]` is the layout of unit u's state, empty for frozen
/// units; it outlives the store. What the bytes hold at first does not matter.
using StateStoreFactory =
    std::function<std::unique_ptr<StateStore>(Device&, const std::vector<RecordLayout>& records)>;

/// Keeps everything in device memory, used in the order that its users keep among them.
std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    const std::vector<RecordLayout>& records);
/// Keeps everything in memory of a tier, counted as `category`.
StateStoreFactory make_memory_state_store(Tier tier, Category category);

}  // namespace zero3d
