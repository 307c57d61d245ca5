// Kernels of the device's tests.
#pragma once

#include <cstdint>

#include "zero3d/device/stream.h"

namespace zero3d::test {

/// Enqueues a write of `value` to all of an i32 view of the memory of the stream's GPU.
void fill(Stream& stream, const View& view, std::int32_t value);

/// Enqueues a kernel that traps.
void trap(Stream& stream);

}  // namespace zero3d::test
