// Arguments of the elementwise passes, checked and handed to the back end.
#include "zero3d/kernels/elementwise.h"

#include <utility>
#include <vector>

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/elementwise.h"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels {
namespace {

PairArgs pair_args(const char* what, const ConstView& src, const View& dst) {
  require_float(what, "src", src);
  require_float(what, "dst", dst);
  require_same_numel(what, "src", src, "dst", dst);
  return {src.data(), src.dtype(), src.numel(), dst.data(), dst.dtype()};
}

}  // namespace

void convert(Stream& stream, const ConstView& src, const View& dst) {
  dispatch(stream, "convert", {reads(src), writes(dst)},
           {.cpu = cpu::convert, .cuda = cuda::convert}, pair_args("convert", src, dst));
}

void add(Stream& stream, const ConstView& src, const View& dst) {
  dispatch(stream, "add", {reads(src), writes(dst)}, {.cpu = cpu::add, .cuda = cuda::add},
           pair_args("add", src, dst));
}

void copy_columns(Stream& stream, const ConstColumns& src, const Columns& dst) {
  constexpr const char* kWhat = "copy_columns";
  const DType dtype = src.matrix.dtype();
  const std::int64_t rows = src.matrix.shape().rows();
  require_columns(kWhat, "src", src, dtype, rows, src.count);
  require_columns(kWhat, "dst", dst, dtype, rows, src.count);
  const CopyColumnsArgs args{rows_of(src), rows_of(dst), rows,
                             src.count * static_cast<std::int64_t>(size_of(dtype)),
                             static_cast<std::int64_t>(size_of(dtype))};
  dispatch(stream, kWhat, {reads(src.matrix), writes(dst.matrix)},
           {.cpu = cpu::copy_columns, .cuda = cuda::copy_columns}, args);
}

void sum_columns(Stream& stream, std::span<const ConstColumns> parts, const Columns& dst) {
  constexpr const char* kWhat = "sum_columns";
  require_float(kWhat, "dst's matrix", dst.matrix);
  require(!parts.empty(), kWhat, "expected at least one part");
  SumColumnsArgs args;
  args.dtype = dst.matrix.dtype();
  args.rows = dst.matrix.shape().rows();
  args.width = dst.count;
  args.to = rows_of(dst);
  require_columns(kWhat, "dst", dst, args.dtype, args.rows, args.width);
  std::vector<Access> touched{writes(dst.matrix)};
  for (const ConstColumns& part : parts) {
    require_columns(kWhat, "part", part, args.dtype, args.rows, args.width);
    args.parts.push_back(rows_of(part));
    touched.push_back(reads(part.matrix));
  }
  dispatch(stream, kWhat, touched, {.cpu = cpu::sum_columns, .cuda = cuda::sum_columns},
           std::move(args));
}

void add_scaled(Stream& stream, const ConstView& src, float factor, const View& dst) {
  dispatch(stream, "add_scaled", {reads(src), writes(dst)},
           {.cpu = cpu::add_scaled, .cuda = cuda::add_scaled},
           AddScaledArgs{pair_args("add_scaled", src, dst), factor});
}

void scale(Stream& stream, const View& x, float factor) {
  require_float("scale", "x", x);
  const ScaleArgs args{x.data(), x.dtype(), x.numel(), factor};
  dispatch(stream, "scale", {writes(x)}, {.cpu = cpu::scale, .cuda = cuda::scale}, args);
}

void fill(Stream& stream, const View& x, float value) {
  require_float("fill", "x", x);
  const ScaleArgs args{x.data(), x.dtype(), x.numel(), value};
  dispatch(stream, "fill", {writes(x)}, {.cpu = cpu::fill, .cuda = cuda::fill}, args);
}

void square_sums(Stream& stream, const ConstView& x, const View& sums) {
  require_float("square_sums", "x", x);
  const std::int64_t blocks = (x.numel() + kNormBlock - 1) / kNormBlock;
  require_elements("square_sums", "sums (one per 1024 elements of x)", sums, DType::f64, blocks);
  const SquareSumsArgs args{x.data(), x.dtype(), x.numel(), sums.as<double>()};
  dispatch(stream, "square_sums", {reads(x), writes(sums)},
           {.cpu = cpu::square_sums, .cuda = cuda::square_sums}, args);
}

}  // namespace zero3d::kernels
