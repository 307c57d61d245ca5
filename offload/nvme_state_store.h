// The optimizer's state on drives: tiles are read into slots of pinned memory ahead of their use,
// and written back behind it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3d/offload/io_queue.h"
#include "zero3d/offload/state_store.h"

namespace zero3d {

struct NvmeStateOptions {
  std::string name = "optimizer state";  ///< In messages and file names.
  Category category = Category::optimizer_states;
  Tier tier = Tier::pinned;        ///< Of the slots.
  std::vector<std::string> paths;  ///< One per drive; units lie on them in turn.
  int buffer_count = 4;            ///< Slots: tiles in memory at a time, at least 1.
  /// Elements of the largest tile, which give a slot its size; 0: of the largest unit.
  std::int64_t tile_elements = 0;
  bool read_ahead = true;    ///< Tiles are read while others are in use, ...
  bool write_behind = true;  ///< ... and while others are written.
  bool direct = true;        ///< Past the page cache, where the file system can.
  bool checksums = false;    ///< What is read is held to what was written, page by page.
  IoOptions io;
};

/// Bytes of the slots' memory.
std::int64_t slot_bytes(const std::vector<RecordLayout>& records, std::int64_t tile_elements,
                        int buffer_count);

/// The store's error ends the work that waits for a tile, and the next call of the host: IoError
/// with path, errno and offset. A tile that was never written is not read.
StateStoreFactory make_nvme_state_store(NvmeStateOptions options);

}  // namespace zero3d
