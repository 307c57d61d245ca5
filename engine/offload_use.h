// What moved between the tiers, and how long work waited for it.
#pragma once

#include <cstdint>

namespace zero3d {

struct OffloadUse {
  std::int64_t read_bytes = 0;  ///< From drives.
  std::int64_t written_bytes = 0;
  std::int64_t copied_in_bytes = 0;  ///< From the host's memory to the device's; batches too.
  std::int64_t copied_out_bytes = 0;
  double parameter_wait_seconds = 0;  ///< The compute stream stood still for parameters.
  double state_wait_seconds = 0;      ///< The host's update did for tiles of state and gradients.

  friend OffloadUse operator-(const OffloadUse& a, const OffloadUse& b) {
    return {a.read_bytes - b.read_bytes,
            a.written_bytes - b.written_bytes,
            a.copied_in_bytes - b.copied_in_bytes,
            a.copied_out_bytes - b.copied_out_bytes,
            a.parameter_wait_seconds - b.parameter_wait_seconds,
            a.state_wait_seconds - b.state_wait_seconds};
  }
};

}  // namespace zero3d
