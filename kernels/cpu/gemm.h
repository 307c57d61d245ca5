// GEMM and column sums on the CPU: the bodies behind kernels/gemm.h, called from a stream's task.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels::cpu {

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
void gemm(const GemmArgs& args);

/// out[0, j] = sum over i of x[i, j] (+ out[0, j]).
void column_sums(const ConstMatrix& x, std::int64_t rows, const Matrix& out, bool accumulate);

}  // namespace zero3d::kernels::cpu
