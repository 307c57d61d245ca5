// A CPU device whose copies between the device and the host take the time that a link of a given
// rate would: the stream sleeps after each, so that a copy takes no core from what runs beside it.
#pragma once

#include <memory>

#include "zero3d/device/device.h"

namespace zero3d::bench {

/// `bytes_per_second` of copies between the two; others are as they are.
std::unique_ptr<Device> make_timed_device(std::unique_ptr<Device> inner, double bytes_per_second);

}  // namespace zero3d::bench
