// Reads elements of a file into a view, as they are or converted with one rounding. Internal to
// formats.
#pragma once

#include <cstdint>

#include "zero3d/core/view.h"
#include "zero3d/formats/input_file.h"

namespace zero3d {

/// dst.numel() elements of dtype `from`, which lie in a row at byte `offset`, to host memory. The
/// dtypes are convertible (convert.h). Throws IoError.
void read_elements(const InputFile& file, DType from, std::uint64_t offset, const View& dst);

}  // namespace zero3d
