// What matrix products and column sums get. Plain pointers and extents, the same for every back
// end.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels {

/// A row-major matrix with `columns` elements a row; data is null for one that is absent.
template <typename Byte>
struct BasicMatrix {
  Byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t columns = 0;

  Byte* at(std::int64_t row, std::int64_t column) const {
    return data + static_cast<std::size_t>(row * columns + column) * size_of(dtype);
  }
};

using Matrix = BasicMatrix<std::byte>;
using ConstMatrix = BasicMatrix<const std::byte>;

/// c[m, n] = op(a)[m, k] op(b)[k, n] + bias[1, n] + residual[m, n] (+ c).
struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  ConstMatrix a, b;
  bool trans_a = false, trans_b = false;
  ConstMatrix bias, residual;
  Matrix c;
  bool accumulate = false;
};

/// out[0, j] = sum over i < rows of x[i, j] (+ out[0, j]), of as many j as out has columns.
struct ColumnSumsArgs {
  ConstMatrix x;
  std::int64_t rows = 0;
  Matrix out;
  bool accumulate = false;
};

}  // namespace zero3d::kernels
