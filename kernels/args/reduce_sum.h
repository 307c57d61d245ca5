// What a sum in rank order gets. Plain pointers and extents, the same for every back end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels {

/// out[i] = round(scale_out * (((w0 + w1) + w2) + ...)) with wr = wire(scale_in * inputs[r][i]),
/// all in fp32. Starts from the first input, not from zero: one input with scales of 1 passes
/// through unchanged. f32, bf16 and f16 on either side. `out` may be one of the inputs when the
/// dtypes are equal.
struct ReduceSumArgs {
  std::span<const void* const> inputs;
  DType in_dtype = DType::f32;
  void* out = nullptr;
  DType out_dtype = DType::f32;
  std::int64_t count = 0;
  float scale_in = 1.0f;
  float scale_out = 1.0f;
  std::optional<DType> wire;  ///< None: values are not rounded on their way.
};

}  // namespace zero3d::kernels
