#include "zero3d/offload/offload_store.h"

#include <utility>

#include "zero3d/offload/nvme_state_store.h"

namespace zero3d {

StateStoreFactory make_offload_store(const OffloadSettings& settings, OffloadStoreUse use) {
  const OptimizerOffload& offload = settings.optimizer;
  if (offload.device == OffloadDevice::cpu)
    return make_memory_state_store(offload.tier(), use.category);
  NvmeStateOptions options;
  options.name = std::move(use.name);
  options.category = use.category;
  options.tier = offload.tier();
  options.paths = offload.paths;
  options.buffer_count = offload.buffer_count;
  options.tile_elements = use.tile_elements;
  options.read_ahead = offload.pipeline_read;
  options.write_behind = offload.pipeline_write;
  options.checksums = settings.checksums;
  options.io = settings.io;
  options.io.rank = use.rank;
  return make_nvme_state_store(std::move(options));
}

std::int64_t offload_store_bytes(const OptimizerOffload& offload,
                                 const std::vector<RecordLayout>& records,
                                 std::int64_t tile_elements) {
  if (offload.device == OffloadDevice::nvme)
    return slot_bytes(records, tile_elements, offload.buffer_count);
  std::int64_t bytes = 0;
  for (const RecordLayout& unit : records) bytes += unit.bytes();
  return bytes;
}

}  // namespace zero3d
