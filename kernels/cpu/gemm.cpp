// GEMM on the CPU: a grid of tiles that depends on the extents alone, each multiplied by one thread
// and finished (bias, residual, accumulation, rounding) while it is hot in that thread's cache.
#include "zero3d/kernels/cpu/gemm.h"

#include <algorithm>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/convert_rows.h"
#include "zero3d/kernels/cpu/scratch.h"
#include "zero3d/kernels/cpu/tile_product.h"

namespace zero3d::kernels::cpu {
namespace {

constexpr std::int64_t kTileM = 256, kTileN = 768;  // beyond, packing is too small a part to gain
constexpr std::int64_t kFineTileM = 128, kFineTileN = 192;
constexpr std::int64_t kTilesWanted = 4;         // so that a few threads share a small product too
constexpr std::int64_t kSmallTile = 16'000'000;  // multiply-adds not worth sharing further
constexpr std::int64_t kGranuleM = 16, kGranuleN = 48;  // multiples of oneDNN's register tiles

struct Grid {
  std::int64_t tile_m, tile_n;
  std::int64_t tiles_m, tiles_n;
};

std::int64_t tiles_in(std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; }

/// `extent` cut into as many nearly equal parts as tiles of at most `tile` need.
std::int64_t even_tile(std::int64_t extent, std::int64_t tile, std::int64_t granule) {
  const std::int64_t even = tiles_in(extent, tiles_in(extent, tile));
  return tiles_in(even, granule) * granule;
}

/// Large tiles repeat the least packing. A product with few of them is cut finer, first where that
/// costs least: between rows of C, unless each cut packs a transposed B once more.
Grid choose_grid(std::int64_t m, std::int64_t n, std::int64_t k, bool trans_b) {
  std::int64_t tile_m = kTileM, tile_n = kTileN;
  while (true) {
    Grid grid{};
    grid.tile_m = even_tile(m, tile_m, kGranuleM);
    grid.tile_n = even_tile(n, tile_n, kGranuleN);
    grid.tiles_m = tiles_in(m, grid.tile_m);
    grid.tiles_n = tiles_in(n, grid.tile_n);
    const bool fine_n = grid.tile_n <= kFineTileN;
    const bool cut_m = fine_n || (grid.tile_m > kFineTileM && !trans_b);
    if (grid.tiles_m * grid.tiles_n >= kTilesWanted ||
        grid.tile_m * grid.tile_n * k <= kSmallTile || (cut_m && grid.tile_m <= kGranuleM))
      return grid;
    if (cut_m) {
      tile_m = grid.tile_m / 2;
    } else {
      tile_n = grid.tile_n / 2;
    }
  }
}

/// Where the product of a tile is computed.
struct Place {
  void* data;
  std::int64_t ld;
  bool in_c;    ///< In C itself, in C's dtype; else aside, in fp32.
  bool biased;  ///< The product comes with the bias.
};

/// The residual may be C, and accumulation reads C: their product is kept aside.
Place place_for(const GemmArgs& g, std::int64_t m0, std::int64_t n0, std::int64_t m,
                std::int64_t n) {
  const bool stores = !g.accumulate && g.residual.data == nullptr;
  if (stores && g.c.dtype == DType::f32) return {g.c.at(m0, n0), g.c.columns, true, false};
  if (stores && g.c.dtype == DType::bf16 && g.a.dtype == DType::bf16 && g.k > 0 &&
      g.bias.dtype != DType::f16 && stores_bf16())
    return {g.c.at(m0, n0), g.c.columns, true, true};
  thread_local Scratch memory;
  return {memory.get<float>(static_cast<std::size_t>(m * n)), n, false, false};
}

/// Adds what is to be added to the rows of an fp32 product and stores them in C.
void finish_tile(const GemmArgs& g, std::int64_t m0, std::int64_t n0, std::int64_t m,
                 std::int64_t n, const Place& place) {
  for (std::int64_t i = 0; i < m; ++i) {
    float* row = static_cast<float*>(place.data) + i * place.ld;
    std::byte* c = g.c.at(m0 + i, n0);
    if (g.bias.data != nullptr) add_row(g.bias.at(0, n0), g.bias.dtype, n, row);
    if (g.residual.data != nullptr) add_row(g.residual.at(m0 + i, n0), g.residual.dtype, n, row);
    if (g.accumulate) add_row(c, g.c.dtype, n, row);
    if (!place.in_c) store_row(row, n, c, g.c.dtype);
  }
}

void run_tile(const GemmArgs& g, std::int64_t m0, std::int64_t n0, std::int64_t m, std::int64_t n) {
  const Place place = place_for(g, m0, n0, m, n);
  TileProduct tile;
  tile.m = m;
  tile.n = n;
  tile.k = g.k;
  tile.dtype = g.a.dtype;
  tile.a = g.trans_a ? g.a.at(0, m0) : g.a.at(m0, 0);
  tile.lda = g.a.columns;
  tile.trans_a = g.trans_a;
  tile.b = g.trans_b ? g.b.at(n0, 0) : g.b.at(0, n0);
  tile.ldb = g.b.columns;
  tile.trans_b = g.trans_b;
  tile.c = place.data;
  tile.c_dtype = place.in_c ? g.c.dtype : DType::f32;
  tile.ldc = place.ld;
  if (place.biased && g.bias.data != nullptr) {
    tile.bias = g.bias.at(0, n0);
    tile.bias_dtype = g.bias.dtype;
  }
  multiply_tile(tile);
  if (!place.in_c || (g.bias.data != nullptr && !place.biased)) finish_tile(g, m0, n0, m, n, place);
}

constexpr std::int64_t kSumRows = 128;     // rows summed before they join a column's total
constexpr std::int64_t kSumColumns = 128;  // columns of one task

void sum_columns(const ColumnSumsArgs& a, std::int64_t begin, std::int64_t count) {
  float total[kSumColumns] = {};
  for (std::int64_t first = 0; first < a.rows; first += kSumRows) {
    float part[kSumColumns] = {};
    const std::int64_t end = std::min(first + kSumRows, a.rows);
    for (std::int64_t row = first; row < end; ++row)
      add_row(a.x.at(row, begin), a.x.dtype, count, part);
    add_row(part, DType::f32, count, total);
  }
  std::byte* to = a.out.at(0, begin);
  if (a.accumulate) add_row(to, a.out.dtype, count, total);
  store_row(total, count, to, a.out.dtype);
}

}  // namespace

void gemm(const GemmArgs& args) {
  if (args.m == 0 || args.n == 0) return;
  const Grid grid = choose_grid(args.m, args.n, args.k, args.trans_b);
  // Down the rows first: neighbours in time share their columns of B.
  parallel_for(grid.tiles_m * grid.tiles_n, 1, [&](std::int64_t index, std::int64_t) {
    const std::int64_t m0 = index % grid.tiles_m * grid.tile_m;
    const std::int64_t n0 = index / grid.tiles_m * grid.tile_n;
    run_tile(args, m0, n0, std::min(grid.tile_m, args.m - m0), std::min(grid.tile_n, args.n - n0));
  });
}

void column_sums(const ColumnSumsArgs& args) {
  parallel_for(args.out.columns, kSumColumns, [&args](std::int64_t begin, std::int64_t end) {
    sum_columns(args, begin, end - begin);
  });
}

}  // namespace zero3d::kernels::cpu
