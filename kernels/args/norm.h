// What the passes of LayerNorm and RMSNorm get. Plain pointers and extents, the same for every back
// end.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels {

/// The arguments of all passes; null where a pass has none. x, dy, residual and y are [rows, width]
/// of `dtype`, as are the parameters [width].
struct NormArgs {
  bool rms = false;
  bool one_plus_weight = false;  ///< RMSNorm whose factor is 1 + weight.
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float eps = 0;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* dy = nullptr;
  const void* residual = nullptr;
  void* y = nullptr;      ///< y, or dx of a backward pass.
  float* mean = nullptr;  ///< [rows]; written by forward.
  float* rstd = nullptr;
  const float* saved_mean = nullptr;
  const float* saved_rstd = nullptr;
  DType gradient_dtype = DType::f32;  ///< Of dweight and dbias, [width].
  void* dweight = nullptr;
  void* dbias = nullptr;
  bool accumulate = false;
};

}  // namespace zero3d::kernels
