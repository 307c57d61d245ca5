// The product of one tile of a GEMM, by the calling thread alone. Two sources implement it:
// tile_product_onednn.cpp, and tile_product_loops.cpp for ThreadSanitizer builds, which cannot see
// into code that oneDNN makes at run time.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels::cpu {

/// C[m, n] = op(A)[m, k] op(B)[k, n] + bias[n], row-major, summed in fp32 and rounded once, in an
/// order that depends on the fields below but not on the addresses.
struct TileProduct {
  std::int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f32;  ///< Of A and B: f32, bf16 or f16.
  const void* a = nullptr;
  std::int64_t lda = 0;  ///< Elements from one stored row to the next.
  bool trans_a = false;  ///< Stored [k, m].
  const void* b = nullptr;
  std::int64_t ldb = 0;
  bool trans_b = false;  ///< Stored [n, k].
  void* c = nullptr;
  DType c_dtype = DType::f32;     ///< f32; bf16 from bf16 operands with k > 0 where stores_bf16().
  const void* bias = nullptr;     ///< Only with a bf16 C; null for none.
  DType bias_dtype = DType::f32;  ///< f32 or bf16.
  std::int64_t ldc = 0;
};
void multiply_tile(const TileProduct& tile);

/// Whether multiply_tile also rounds and stores bf16 (subnormal results as zero, as the CPU's bf16
/// instructions treat them).
bool stores_bf16();

/// As gemm_bf16_path of gemm.h.
const char* bf16_path();

}  // namespace zero3d::kernels::cpu
