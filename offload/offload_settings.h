// What of a model leaves the device, to where, and how: plain data, as a run's settings hold it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/device/memory_kind.h"
#include "zero3d/offload/io_options.h"

namespace zero3d {

enum class OffloadDevice {
  none,  ///< It stays on the device.
  cpu,
  nvme
};

/// Masters and moments, and with them the gradients.
struct OptimizerOffload {
  OffloadDevice device = OffloadDevice::none;
  std::vector<std::string> paths;  ///< Of nvme: one per drive.
  bool pin_memory = true;
  int buffer_count = 4;         ///< Of nvme: tiles in memory at a time, at least 1.
  bool pipeline_read = false;   ///< The next tile is read while one is updated.
  bool pipeline_write = false;  ///< The last tile is written while one is updated.
  double ratio =
      1;  ///< This share of the parameters is updated on the CPU, the rest on the device.

  bool on() const { return device != OffloadDevice::none; }
  Tier tier() const { return pin_memory ? Tier::pinned : Tier::pageable; }
};

/// The shards of parameters between their uses, where parameters are sharded (stage 3).
struct ParameterOffload {
  OffloadDevice device = OffloadDevice::none;
  std::vector<std::string> paths;  ///< Of nvme: one per drive.
  bool pin_memory = true;
  int buffer_count = 5;                        ///< Of nvme: shards on their way at a time.
  std::int64_t buffer_elements = 100'000'000;  ///< Of nvme: of the largest buffer.
  std::int64_t max_in_cpu = 1'000'000'000;     ///< Of nvme: elements that host memory keeps.

  bool on() const { return device != OffloadDevice::none; }
  Tier tier() const { return pin_memory ? Tier::pinned : Tier::pageable; }
};

struct OffloadSettings {
  static constexpr int kMostBuffers = 1024;

  OptimizerOffload optimizer;
  ParameterOffload parameters;
  /// Inputs kept for recomputation wait in pinned memory; without recomputation none are kept.
  bool activations = false;
  IoOptions io;
  bool checksums = false;  ///< What is read from a drive is held to what was written.

  bool on() const { return optimizer.on() || parameters.on() || activations; }
  bool uses_drives() const {
    return optimizer.device == OffloadDevice::nvme || parameters.device == OffloadDevice::nvme;
  }
};

std::string_view name_of(OffloadDevice device);

/// A line for each kind of state that leaves the device: what, to where and how.
std::vector<std::string> describe_offload(const OffloadSettings& settings);

/// Throws Error(kInvalid) that names the first field out of its range.
void require_in_range(const OffloadSettings& settings);

}  // namespace zero3d
