// GEMM on the CPU: a grid of tiles that depends on the extents alone, each multiplied by one thread
// and finished (bias, residual, accumulation, rounding) while it is hot in that thread's cache.
#include "zero3d/kernels/gemm.h"

#include <algorithm>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/convert_rows.h"
#include "zero3d/kernels/cpu/scratch.h"
#include "zero3d/kernels/cpu/tile_product.h"
#include "zero3d/kernels/dispatch.h"

namespace zero3d::kernels {
namespace {

/// A matrix as tiles address it: row-major with `columns` elements a row.
struct Matrix {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t columns = 0;

  const std::byte* at(std::int64_t row, std::int64_t column) const {
    return data + static_cast<std::size_t>(row * columns + column) * size_of(dtype);
  }
};
Matrix matrix(const ConstView& view, std::int64_t columns) {
  return {view.data(), view.dtype(), columns};
}

struct GemmTask {
  std::int64_t m, n, k;
  std::int64_t tile_m, tile_n;
  Matrix a, b, bias, residual;
  bool trans_a, trans_b, accumulate;
  std::byte* c;
  DType c_dtype;
};

constexpr std::int64_t kTileM = 256;
constexpr std::int64_t kTileN = 768;
constexpr std::int64_t kTilesWanted = 8;         // so that a few threads share even a small product
constexpr std::int64_t kSmallTile = 16'000'000;  // multiply-adds not worth sharing further
constexpr std::int64_t kGranuleM = 16, kGranuleN = 48;  // multiples of oneDNN's register tiles

std::int64_t tiles_in(std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; }

/// `extent` cut into as many nearly equal parts as tiles of at most `tile` need.
std::int64_t even_tile(std::int64_t extent, std::int64_t tile, std::int64_t granule) {
  const std::int64_t even = tiles_in(extent, tiles_in(extent, tile));
  return tiles_in(even, granule) * granule;
}

/// Large tiles repeat the least packing; a product with few of them is cut finer.
void choose_tiles(GemmTask& task) {
  std::int64_t tile_m = kTileM, tile_n = kTileN;
  const auto shape = [&] {
    task.tile_m = even_tile(task.m, tile_m, kGranuleM);
    task.tile_n = even_tile(task.n, tile_n, kGranuleN);
  };
  shape();
  while (tiles_in(task.m, task.tile_m) * tiles_in(task.n, task.tile_n) < kTilesWanted &&
         task.tile_m * task.tile_n * task.k > kSmallTile) {
    if (task.tile_n >= 2 * task.tile_m) {
      tile_n = task.tile_n / 2;
    } else {
      tile_m = task.tile_m / 2;
    }
    shape();
  }
}

/// Adds what is to be added to rows of the product and stores them in C, unless `product` is C.
void finish_tile(const GemmTask& task, std::int64_t m0, std::int64_t m, std::int64_t n0,
                 std::int64_t n, float* product, std::int64_t ld, bool in_place) {
  for (std::int64_t i = 0; i < m; ++i) {
    float* row = product + i * ld;
    std::byte* c =
        task.c + static_cast<std::size_t>((m0 + i) * task.n + n0) * size_of(task.c_dtype);
    if (task.bias.data != nullptr) cpu::add_row(task.bias.at(0, n0), task.bias.dtype, n, row);
    if (task.residual.data != nullptr)
      cpu::add_row(task.residual.at(m0 + i, n0), task.residual.dtype, n, row);
    if (task.accumulate) cpu::add_row(c, task.c_dtype, n, row);
    if (!in_place) cpu::store_row(row, n, c, task.c_dtype);
  }
}

void run_tile(const GemmTask& task, std::int64_t m0, std::int64_t n0) {
  cpu::TileProduct tile;
  tile.m = std::min(task.tile_m, task.m - m0);
  tile.n = std::min(task.tile_n, task.n - n0);
  tile.k = task.k;
  tile.dtype = task.a.dtype;
  tile.a = task.trans_a ? task.a.at(0, m0) : task.a.at(m0, 0);
  tile.lda = task.a.columns;
  tile.trans_a = task.trans_a;
  tile.b = task.trans_b ? task.b.at(n0, 0) : task.b.at(0, n0);
  tile.ldb = task.b.columns;
  tile.trans_b = task.trans_b;
  // The residual may be C, and accumulation reads C: their product is kept aside.
  const bool in_place =
      task.c_dtype == DType::f32 && !task.accumulate && task.residual.data == nullptr;
  if (in_place) {
    tile.c = reinterpret_cast<float*>(task.c) + m0 * task.n + n0;
    tile.ldc = task.n;
  } else {
    thread_local cpu::Scratch memory;
    tile.c = memory.get<float>(static_cast<std::size_t>(tile.m * tile.n));
    tile.ldc = tile.n;
  }
  cpu::multiply_tile(tile);
  if (!in_place || task.bias.data != nullptr)
    finish_tile(task, m0, tile.m, n0, tile.n, tile.c, tile.ldc, in_place);
}

/// The stored matrices as A[m, k] and B[k, n]; throws unless they fit each other and C.
GemmTask checked_task(const Gemm& g) {
  require_float(g.what, "a", g.a);
  require_float(g.what, "b", g.b);
  require_float(g.what, "c", g.c);
  require_same_dtype(g.what, "a", g.a, "b", g.b);
  const bool trans_a = g.trans_a == Transpose::yes, trans_b = g.trans_b == Transpose::yes;
  const auto rows = [](const ConstView& v) { return v.shape().rows(); };
  const auto last = [](const ConstView& v) { return v.shape().last(); };
  GemmTask task{};
  task.m = trans_a ? last(g.a) : rows(g.a);
  task.k = trans_a ? rows(g.a) : last(g.a);
  task.n = trans_b ? rows(g.b) : last(g.b);
  require((trans_b ? last(g.b) : rows(g.b)) == task.k, g.what, "expected matrices with one k, but ",
          describe("a", g.a), trans_a ? " (transposed)" : "", " and ", describe("b", g.b),
          trans_b ? " (transposed)" : "");
  require(rows(g.c) == task.m && last(g.c) == task.n, g.what, "expected c of [", task.m, ", ",
          task.n, "] for ", describe("a", g.a), trans_a ? " (transposed)" : "", " and ",
          describe("b", g.b), trans_b ? " (transposed)" : "", ", but ", describe("c", g.c));
  if (g.bias.defined()) {
    require_float(g.what, "bias", g.bias);
    require(g.bias.numel() == task.n, g.what, "expected a bias of ", task.n,
            " elements, one per column of c, but ", describe("bias", g.bias), " and ",
            describe("c", g.c));
  }
  if (g.residual.defined()) {
    require_float(g.what, "residual", g.residual);
    require_same_numel(g.what, "residual", g.residual, "c", g.c);
  }
  task.a = matrix(g.a, last(g.a));
  task.b = matrix(g.b, last(g.b));
  task.bias = matrix(g.bias, task.n);
  task.residual = matrix(g.residual, task.n);
  task.trans_a = trans_a;
  task.trans_b = trans_b;
  task.accumulate = g.accumulate;
  task.c = g.c.data();
  task.c_dtype = g.c.dtype();
  return task;
}

}  // namespace

void gemm(Stream& stream, const Gemm& args) {
  GemmTask task = checked_task(args);
  if (task.m == 0 || task.n == 0) return;
  choose_tiles(task);
  dispatch(stream, args.what,
           {reads(args.a), reads(args.b), reads(args.bias), reads(args.residual), writes(args.c)},
           [task] {
             // Down the rows first: neighbours in time share their columns of B.
             const std::int64_t tiles_m = tiles_in(task.m, task.tile_m);
             const std::int64_t tiles_n = tiles_in(task.n, task.tile_n);
             parallel_for(tiles_m * tiles_n, 1, [&](std::int64_t index, std::int64_t) {
               run_tile(task, index % tiles_m * task.tile_m, index / tiles_m * task.tile_n);
             });
           });
}

const char* gemm_bf16_path() { return cpu::bf16_path(); }

namespace {

constexpr std::int64_t kSumRows = 128;     // rows summed before they join a column's total
constexpr std::int64_t kSumColumns = 128;  // columns of one task

void sum_columns(const Matrix& x, std::int64_t rows, std::int64_t begin, std::int64_t count,
                 std::byte* out, DType out_dtype, bool accumulate) {
  float total[kSumColumns] = {};
  for (std::int64_t first = 0; first < rows; first += kSumRows) {
    float part[kSumColumns] = {};
    const std::int64_t end = std::min(first + kSumRows, rows);
    for (std::int64_t row = first; row < end; ++row)
      cpu::add_row(x.at(row, begin), x.dtype, count, part);
    cpu::add_row(part, DType::f32, count, total);
  }
  std::byte* to = out + static_cast<std::size_t>(begin) * size_of(out_dtype);
  if (accumulate) cpu::add_row(to, out_dtype, count, total);
  cpu::store_row(total, count, to, out_dtype);
}

}  // namespace

void column_sums(Stream& stream, const ConstView& x, const View& out, bool accumulate) {
  require_float("column_sums", "x", x);
  require_float("column_sums", "out", out);
  const std::int64_t rows = x.shape().rows(), columns = x.shape().last();
  require(out.numel() == columns, "column_sums", "expected one sum per column, but ",
          describe("x", x), " and ", describe("out", out));
  if (columns == 0) return;
  dispatch(stream, "column_sums", {reads(x), writes(out)},
           [in = matrix(x, columns), rows, to = out.data(), dtype = out.dtype(), accumulate] {
             parallel_for(in.columns, kSumColumns, [&](std::int64_t begin, std::int64_t end) {
               sum_columns(in, rows, begin, end - begin, to, dtype, accumulate);
             });
           });
}

}  // namespace zero3d::kernels
