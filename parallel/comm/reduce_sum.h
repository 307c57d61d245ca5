// The sum of a reduction, from what communicators are given. Called from a CPU stream's task.
#pragma once

#include <cstdint>
#include <span>

#include "zero3d/core/dtype.h"
#include "zero3d/kernels/cpu/reduce_sum.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {

/// As kernels::ReduceSumArgs says.
inline void reduce_sum(std::span<const void* const> inputs, DType in_dtype, void* out,
                       DType out_dtype, std::int64_t count, const ReduceOptions& options) {
  kernels::cpu::reduce_sum(
      {inputs, in_dtype, out, out_dtype, count, options.scale_in, options.scale_out, options.wire});
}

}  // namespace zero3d::detail
