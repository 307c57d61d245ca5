// Where the arenas of a CUDA device get their ranges: memory of the GPU, and page-locked memory of
// the host.
#pragma once

#include <memory>

#include "zero3d/device/cpu/arena_resource.h"

namespace zero3d {

std::unique_ptr<RangeSource> cuda_device_ranges(int device);
std::unique_ptr<RangeSource> cuda_pinned_ranges(int device);

}  // namespace zero3d
