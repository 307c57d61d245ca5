// The device that a rank is to have, as a user asks for it, and the one function that makes it:
// what is above need not know which devices there are.
#pragma once

#include <memory>
#include <string>

#include "zero3d/device/device.h"

namespace zero3d {

enum class DeviceChoice {
  cpu,
  cuda,
  automatic  ///< A GPU where the build has the back end and the process may use one.
};
/// "cpu", "cuda" or "auto"; throws Error(kInvalid) for another word.
DeviceChoice parse_device_choice(const std::string& word);

/// What the choice comes to in this process. Throws Error(kInvalid), saying what to do, for a GPU
/// where this build has no CUDA or the process may use none.
DeviceKind device_kind(DeviceChoice choice);

/// A CPU, or the GPU of the rank that is the `local_rank`th on its machine: such ranks take GPUs in
/// turn. What a GPU has no use for (inline_streams, poison_on_free) is not looked at there.
std::unique_ptr<Device> make_device(DeviceKind kind, const CpuDeviceOptions& options,
                                    int local_rank);

}  // namespace zero3d
