// Arguments of Newton-Schulz iterations' passes, checked and handed to the back end.
#include "zero3d/kernels/newton_schulz.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/newton_schulz.h"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels {

void matrix_polynomial(Stream& stream, const ConstView& x, const View& y, float a, float b,
                       float c) {
  constexpr const char* kWhat = "matrix_polynomial";
  const std::int64_t rows = x.shape().last();
  require_elements(kWhat, "x", x, DType::f32, rows * rows);
  require_elements(kWhat, "y", y, DType::f32, rows * rows);
  const PolynomialArgs args{x.as<float>(), y.as<float>(), rows, a, b, c};
  dispatch(stream, kWhat, {reads(x), writes(y)},
           {.cpu = cpu::matrix_polynomial, .cuda = cuda::matrix_polynomial}, args);
}

void rescale(Stream& stream, const ConstView& from, const View& to, float scale, bool normalise) {
  constexpr const char* kWhat = "rescale";
  require_elements(kWhat, "from", from, DType::f32, from.numel());
  require_elements(kWhat, "to", to, DType::f32, from.numel());
  const RescaleArgs args{from.as<float>(), to.as<float>(), from.numel(), scale, normalise};
  dispatch(stream, kWhat, {reads(from), writes(to)}, {.cpu = cpu::rescale, .cuda = cuda::rescale},
           args);
}

}  // namespace zero3d::kernels
