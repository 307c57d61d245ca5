// Arguments of the elementwise passes, checked and handed to the back end.
#include "zero3d/kernels/elementwise.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/elementwise.h"

namespace zero3d::kernels {
namespace {

void require_pair(const char* what, const ConstView& src, const View& dst) {
  require_float(what, "src", src);
  require_float(what, "dst", dst);
  require_same_numel(what, "src", src, "dst", dst);
}

}  // namespace

void convert(Stream& stream, const ConstView& src, const View& dst) {
  require_pair("convert", src, dst);
  dispatch(stream, "convert", {reads(src), writes(dst)}, [src, dst] {
    cpu::convert(src.data(), src.dtype(), src.numel(), dst.data(), dst.dtype());
  });
}

void add(Stream& stream, const ConstView& src, const View& dst) {
  require_pair("add", src, dst);
  dispatch(stream, "add", {reads(src), writes(dst)},
           [src, dst] { cpu::add(src.data(), src.dtype(), src.numel(), dst.data(), dst.dtype()); });
}

void scale(Stream& stream, const View& x, float factor) {
  require_float("scale", "x", x);
  dispatch(stream, "scale", {writes(x)},
           [x, factor] { cpu::scale(x.data(), x.dtype(), x.numel(), factor); });
}

void square_sums(Stream& stream, const ConstView& x, const View& sums) {
  require_float("square_sums", "x", x);
  const std::int64_t blocks = (x.numel() + kNormBlock - 1) / kNormBlock;
  require_elements("square_sums", "sums (one per 1024 elements of x)", sums, DType::f64, blocks);
  dispatch(stream, "square_sums", {reads(x), writes(sums)},
           [x, sums] { cpu::square_sums(x.data(), x.dtype(), x.numel(), sums.as<double>()); });
}

}  // namespace zero3d::kernels
