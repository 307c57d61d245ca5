// Passes over a run of contiguous elements of any kernel dtype, through fp32: what products and
// reductions do to a tile while it is hot in cache. Vector code for the best instruction set of the
// machine; the result of an element depends on nothing else. Called on the thread that owns the
// run.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels::cpu {

/// to[i] = from[i], exactly; `from` is f32, bf16 or f16.
void load_row(const void* from, DType dtype, std::int64_t count, float* to);
/// to[i] += from[i].
void add_row(const void* from, DType dtype, std::int64_t count, float* to);
/// to[i] = round(from[i]).
void store_row(const float* from, std::int64_t count, void* to, DType dtype);

}  // namespace zero3d::kernels::cpu
