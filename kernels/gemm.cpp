// Arguments of matrix products and column sums, checked and handed to the back end.
#include "zero3d/kernels/gemm.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/gemm.h"
#include "zero3d/kernels/cpu/tile_product.h"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels {
namespace {

ConstMatrix matrix(const ConstView& view, std::int64_t columns) {
  return {view.data(), view.dtype(), columns};
}

/// `range` of a matrix of `width` columns, which it must lie in.
ColumnRange within(const char* what, const char* name, ColumnRange range, std::int64_t width) {
  if (range.count < 0) range.count = width - range.first;
  require(range.first >= 0 && range.count >= 0 && range.first <= width - range.count, what,
          "expected columns within the ", width, " of ", name, ", found ", range.first, " to ",
          range.first + range.count);
  return range;
}

std::string describe_operands(const Gemm& g) {
  return concat(describe("a", g.a), g.trans_a == Transpose::yes ? " (transposed)" : "", " and ",
                describe("b", g.b), g.trans_b == Transpose::yes ? " (transposed)" : "");
}

/// The stored matrices as A[m, k] and B[k, n]; throws unless they fit each other and C.
GemmArgs checked(const Gemm& g) {
  require_float(g.what, "a", g.a);
  require_float(g.what, "b", g.b);
  require_float(g.what, "c", g.c);
  require_same_dtype(g.what, "a", g.a, "b", g.b);
  const Shape &a = g.a.shape(), &b = g.b.shape(), &c = g.c.shape();
  const ColumnRange in_a = within(g.what, "a", g.a_columns, a.last());
  const ColumnRange in_b = within(g.what, "b", g.b_columns, b.last());
  const ColumnRange in_c = within(g.what, "c", g.c_columns, c.last());
  GemmArgs args;
  args.trans_a = g.trans_a == Transpose::yes;
  args.trans_b = g.trans_b == Transpose::yes;
  args.m = args.trans_a ? in_a.count : a.rows();
  args.k = args.trans_a ? a.rows() : in_a.count;
  args.n = args.trans_b ? b.rows() : in_b.count;
  if ((args.trans_b ? in_b.count : b.rows()) != args.k)
    throw_invalid(concat(g.what, ": expected matrices with one k, but ", describe_operands(g)));
  if (c.rows() != args.m || in_c.count != args.n)
    throw_invalid(concat(g.what, ": expected c to be [", args.m, ", ", args.n, "], but ",
                         describe("c", g.c), " and ", describe_operands(g)));
  if (g.bias.defined()) require_float_elements(g.what, "bias", g.bias, args.n);
  if (g.residual.defined()) {
    require_float(g.what, "residual", g.residual);
    require_same_numel(g.what, "residual", g.residual, "c", g.c);
  }
  args.a = matrix(g.a, a.last());
  args.b = matrix(g.b, b.last());
  args.bias = matrix(g.bias, args.n);
  args.residual = matrix(g.residual, c.last());
  args.c = {g.c.data(), g.c.dtype(), c.last()};
  args.a.data = args.a.at(0, in_a.first);
  args.b.data = args.b.at(0, in_b.first);
  args.c.data = args.c.at(0, in_c.first);
  if (g.residual.defined()) args.residual.data = args.residual.at(0, in_c.first);
  args.accumulate = g.accumulate;
  return args;
}

}  // namespace

void gemm(Stream& stream, const Gemm& g) {
  dispatch(stream, g.what, {reads(g.a), reads(g.b), reads(g.bias), reads(g.residual), writes(g.c)},
           {.cpu = cpu::gemm, .cuda = cuda::gemm}, checked(g));
}

void column_sums(Stream& stream, const ConstView& x, const View& out, bool accumulate,
                 ColumnRange columns) {
  require_float("column_sums", "x", x);
  const Shape& shape = x.shape();
  const auto [first, count] = within("column_sums", "x", columns, shape.last());
  require_float("column_sums", "out", out);
  if (out.numel() != count)
    throw_invalid(concat("column_sums: expected one sum for each of ", count, " columns, but ",
                         describe("x", x), " and ", describe("out", out)));
  ColumnSumsArgs args{
      matrix(x, shape.last()), shape.rows(), {out.data(), out.dtype(), count}, accumulate};
  args.x.data = args.x.at(0, first);
  dispatch(stream, "column_sums", {reads(x), writes(out)},
           {.cpu = cpu::column_sums, .cuda = cuda::column_sums}, args);
}

const char* gemm_bf16_path() { return cpu::bf16_path(); }

}  // namespace zero3d::kernels
