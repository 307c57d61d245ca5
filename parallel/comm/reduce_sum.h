// The arithmetic of every fixed-order reduction: one pass over the ranks' inputs, vectorised with
// run-time dispatch and spread over the stream's arena. Internal to the communicators; a vector's
// result is the scalar formula's, bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "zero3d/core/dtype.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {

/// out[i] = round(scale_out * (((w0 + w1) + w2) + ...)) with wr = wire(scale_in * inputs[r][i]),
/// all in fp32. Starts from the first input, not from zero: one input with scales of 1 passes
/// through unchanged. f32, bf16 and f16 on either side. `out` may be one of the inputs when the
/// dtypes are equal.
void reduce_sum(std::span<const void* const> inputs, DType in_dtype, void* out, DType out_dtype,
                std::int64_t count, const ReduceOptions& options);

}  // namespace zero3d::detail
