// Tile products as plain loops, in place of oneDNN where a sanitizer has to see every access.
#include <algorithm>

#include "zero3d/kernels/cpu/convert_rows.h"
#include "zero3d/kernels/cpu/scratch.h"
#include "zero3d/kernels/cpu/tile_product.h"

namespace zero3d::kernels::cpu {
namespace {

/// op(X)[rows, columns] as fp32 and row-major.
float* untransposed(Scratch& memory, const void* x, DType dtype, std::int64_t ld, bool trans,
                    std::int64_t rows, std::int64_t columns) {
  thread_local Scratch line_memory;
  const std::int64_t stored_rows = trans ? columns : rows;
  const std::int64_t stored_columns = trans ? rows : columns;
  float* out = memory.get<float>(static_cast<std::size_t>(rows * columns));
  float* line = line_memory.get<float>(static_cast<std::size_t>(stored_columns));
  for (std::int64_t r = 0; r < stored_rows; ++r) {
    const auto* row =
        static_cast<const std::byte*>(x) + static_cast<std::size_t>(r * ld) * size_of(dtype);
    load_row(row, dtype, stored_columns, line);
    for (std::int64_t c = 0; c < stored_columns; ++c)
      out[trans ? c * columns + r : r * columns + c] = line[c];
  }
  return out;
}

}  // namespace

void multiply_tile(const TileProduct& tile) {
  thread_local Scratch a_memory, b_memory;
  const float* a =
      untransposed(a_memory, tile.a, tile.dtype, tile.lda, tile.trans_a, tile.m, tile.k);
  const float* b =
      untransposed(b_memory, tile.b, tile.dtype, tile.ldb, tile.trans_b, tile.k, tile.n);
  for (std::int64_t i = 0; i < tile.m; ++i) {
    float* c = static_cast<float*>(tile.c) + i * tile.ldc;
    std::fill_n(c, tile.n, 0.0f);
    for (std::int64_t p = 0; p < tile.k; ++p)
      for (std::int64_t j = 0; j < tile.n; ++j) c[j] += a[i * tile.k + p] * b[p * tile.n + j];
  }
}

bool stores_bf16() { return false; }

const char* bf16_path() { return "fp32"; }

}  // namespace zero3d::kernels::cpu
