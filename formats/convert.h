// Element conversion between the floating dtypes of files and tensors, each with one rounding (to
// nearest, ties to even).
#pragma once

#include <cstddef>

#include "zero3d/core/dtype.h"
#include "zero3d/core/half.h"

namespace zero3d {

/// A double rounded once: through float it would be rounded twice.
bf16 to_bf16(double value);
f16 to_f16(double value);

/// Whether convert_elements can turn `from` into `to`: equal dtypes, or both floating.
bool is_convertible(DType from, DType to);

/// Writes `count` elements of dtype `to`. Source and destination need no alignment and do not
/// overlap.
void convert_elements(DType from, const std::byte* src, DType to, std::byte* dst,
                      std::size_t count);

}  // namespace zero3d
