// Elementwise passes on the CPU: the bodies behind kernels/elementwise.h, called from a stream's
// task on `count` elements.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels::cpu {

void convert(const void* from, DType from_dtype, std::int64_t count, void* to, DType to_dtype);
void add(const void* from, DType from_dtype, std::int64_t count, void* to, DType to_dtype);
void scale(void* x, DType dtype, std::int64_t count, float factor);
void square_sums(const void* x, DType dtype, std::int64_t count, double* sums);

}  // namespace zero3d::kernels::cpu
