// What Newton-Schulz iterations need beside matrix products; fp32.
#pragma once

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d::kernels {

/// y = a I + b x + c y; square matrices.
void matrix_polynomial(Stream& stream, const ConstView& x, const View& y, float a, float b,
                       float c);

/// to = from * scale / (|from| + 1e-7 if `normalise`, else 1). Squares are added in fp64, by
/// blocks, in order. `to` may be `from`.
void rescale(Stream& stream, const ConstView& from, const View& to, float scale, bool normalise);

}  // namespace zero3d::kernels
