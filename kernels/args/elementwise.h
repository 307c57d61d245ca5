// What the elementwise passes get. Plain pointers and extents, the same for every back end.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/core/dtype.h"
#include "zero3d/kernels/args/rows.h"

namespace zero3d::kernels {

/// to[i] = round(from[i]), or round(to[i] + from[i]).
struct PairArgs {
  const void* from = nullptr;
  DType from_dtype = DType::f32;
  std::int64_t count = 0;
  void* to = nullptr;
  DType to_dtype = DType::f32;
};

/// Rows of both are `stride` elements apart.
struct CopyColumnsArgs {
  ConstRows from;
  Rows to;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;    ///< Of a row's columns.
  std::int64_t element = 0;  ///< Bytes.
};

/// to = round(the sum of parts, in their order).
struct SumColumnsArgs {
  DType dtype = DType::f32;
  std::vector<ConstRows> parts;
  Rows to;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

/// to[i] = round(to[i] + from[i] * factor), the product rounded to fp32 first.
struct AddScaledArgs {
  PairArgs pair;
  float factor = 1;
};

/// x[i] = round(x[i] * value), or round(value).
struct ScaleArgs {
  void* x = nullptr;
  DType dtype = DType::f32;
  std::int64_t count = 0;
  float value = 0;
};

struct SquareSumsArgs {
  const void* x = nullptr;
  DType dtype = DType::f32;
  std::int64_t count = 0;
  double* sums = nullptr;  ///< One per kNormBlock elements.
};

}  // namespace zero3d::kernels
