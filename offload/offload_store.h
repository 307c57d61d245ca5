// The store that a run's settings ask for, in host memory or on drives, and what it takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3d/offload/offload_settings.h"
#include "zero3d/offload/state_store.h"

namespace zero3d {

/// What is kept: "optimizer state", "gradients"; and the elements of its largest tile.
struct OffloadStoreUse {
  std::string name;
  Category category = Category::optimizer_states;
  std::int64_t tile_elements = 0;
  int rank = 0;
};

/// For the state that offload_optimizer moves. The settings name a device.
StateStoreFactory make_offload_store(const OffloadSettings& settings, OffloadStoreUse use);

/// Host bytes that it takes for these records.
std::int64_t offload_store_bytes(const OptimizerOffload& offload,
                                 const std::vector<RecordLayout>& records,
                                 std::int64_t tile_elements);

}  // namespace zero3d
