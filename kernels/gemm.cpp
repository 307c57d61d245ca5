// Arguments of matrix products and column sums, checked and handed to the back end.
#include "zero3d/kernels/gemm.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/gemm.h"
#include "zero3d/kernels/cpu/tile_product.h"

namespace zero3d::kernels {
namespace {

ConstMatrix matrix(const ConstView& view, std::int64_t columns) {
  return {view.data(), view.dtype(), columns};
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
  GemmArgs args;
  args.trans_a = g.trans_a == Transpose::yes;
  args.trans_b = g.trans_b == Transpose::yes;
  args.m = args.trans_a ? a.last() : a.rows();
  args.k = args.trans_a ? a.rows() : a.last();
  args.n = args.trans_b ? b.rows() : b.last();
  if ((args.trans_b ? b.last() : b.rows()) != args.k)
    throw_invalid(concat(g.what, ": expected matrices with one k, but ", describe_operands(g)));
  if (c.rows() != args.m || c.last() != args.n)
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
  args.residual = matrix(g.residual, args.n);
  args.c = {g.c.data(), g.c.dtype(), args.n};
  args.accumulate = g.accumulate;
  return args;
}

}  // namespace

void gemm(Stream& stream, const Gemm& g) {
  dispatch(stream, g.what, {reads(g.a), reads(g.b), reads(g.bias), reads(g.residual), writes(g.c)},
           {.cpu = cpu::gemm}, checked(g));
}

void column_sums(Stream& stream, const ConstView& x, const View& out, bool accumulate) {
  require_float("column_sums", "x", x);
  const Shape& shape = x.shape();
  require_float("column_sums", "out", out);
  if (out.numel() != shape.last())
    throw_invalid(concat("column_sums: expected one sum per column, but ", describe("x", x),
                         " and ", describe("out", out)));
  const ColumnSumsArgs args{
      matrix(x, shape.last()), shape.rows(), {out.data(), out.dtype(), shape.last()}, accumulate};
  dispatch(stream, "column_sums", {reads(x), writes(out)}, {.cpu = cpu::column_sums}, args);
}

const char* gemm_bf16_path() { return cpu::bf16_path(); }

}  // namespace zero3d::kernels
