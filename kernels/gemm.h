// Matrix products: C[M, N] = op(A)[M, K] * op(B)[K, N], row-major, with an optional bias and
// accumulation. Inputs and output f32, bf16 or f16 (A and B of one dtype); products are summed in
// fp32 and rounded once at the store. The result is the same bits whatever the number of threads.
#pragma once

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d::kernels {

enum class Transpose { no, yes };

/// Columns [first, first + count) of a stored matrix.
struct ColumnRange {
  std::int64_t first = 0;
  std::int64_t count = -1;  ///< -1: all.
};

struct Gemm {
  ConstView a;  ///< Stored [M, K], or [K, M] when trans_a is yes. Any shape whose rows() x last()
                ///< is that matrix.
  Transpose trans_a = Transpose::no;
  ConstView b;  ///< Stored [K, N], or [N, K] when trans_b is yes.
  Transpose trans_b = Transpose::no;
  View c;              ///< [M, N]; written, never read, unless `accumulate`.
  ConstView bias;      ///< [N], added to each row; undefined for none.
  ConstView residual;  ///< [M, N], added after the bias (before the one rounding); undefined for
                       ///< none. May be c itself.
  /// What of the stored matrices takes part; the rest of C is left alone. The residual's are C's.
  ColumnRange a_columns, b_columns, c_columns;
  bool accumulate = false;  ///< C += product (one add after the product's sum, in fp32).
  const char* what = "gemm";
};
void gemm(Stream& stream, const Gemm& args);

/// out[n] = sum over rows m of x[m, n], in fp32 over fixed blocks of rows combined in order; the
/// gradient of a bias. Of the columns of x that are asked for.
void column_sums(Stream& stream, const ConstView& x, const View& out, bool accumulate = false,
                 ColumnRange columns = {});

/// What the CPU back end multiplies 16-bit matrices with: "avx512_bf16", "amx", or "fp32"
/// (converted inside).
const char* gemm_bf16_path();

}  // namespace zero3d::kernels
