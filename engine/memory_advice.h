// What to change where a plan of memory does not fit: only what the settings do not do already and
// what would help. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3d/engine/train_settings.h"
#include "zero3d/offload/offload_settings.h"

namespace zero3d {

/// What a run's settings do already, as far as advice depends on it.
struct MemoryHabits {
  int stage = 0;       ///< Of ZeRO.
  bool trains = true;  ///< Any parameter.
  int replicas = 1;    ///< Ranks that shards may be divided over.
  OptimizerOffload optimizer;
  ParameterOffload parameters;
  bool recomputes = false;
  bool kept_on_host = false;  ///< The inputs that recomputation keeps.
  bool can_tile = false;      ///< Layers may be cut into tiles.
  TileSettings tiles;
  bool delays_updates = false;  ///< Which keeps the optimizer in host memory.
  std::int64_t micro_batch = 1;
};

/// For less memory of the device.
std::vector<std::string> device_advice(const MemoryHabits& habits);
/// For less host memory, what buffers a budget can clip by itself left out.
std::vector<std::string> host_advice(const MemoryHabits& habits);
/// For less of both together, where the device's memory is the machine's.
std::vector<std::string> machine_advice(const MemoryHabits& habits);

/// "a, b or c".
std::string in_words(const std::vector<std::string>& ways);

/// The budget to ask for, as an option takes it, of at least `bytes`: "836MiB".
std::string budget_of(std::int64_t bytes);

}  // namespace zero3d
