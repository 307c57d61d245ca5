// Arguments of LayerNorm and RMSNorm, checked and handed to the back end.
#include "zero3d/kernels/norm.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/norm.h"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels {
namespace {

enum class Kind : std::uint8_t { layer, rms, rms_one_plus_weight };

Kind kind_of(RmsFactor factor) {
  return factor == RmsFactor::weight ? Kind::rms : Kind::rms_one_plus_weight;
}

void set_kind(Kind kind, NormArgs& args) {
  args.rms = kind != Kind::layer;
  args.one_plus_weight = kind == Kind::rms_one_plus_weight;
}

NormArgs base_args(const char* what, const ConstView& x) {
  require_float(what, "x", x);
  NormArgs args{};
  args.dtype = x.dtype();
  args.rows = x.shape().rows();
  args.width = x.shape().last();
  return args;
}

void forward(Stream& stream, const char* what, Kind kind, const ConstView& x,
             const ConstView& weight, const ConstView& bias, float eps, const View& y,
             const View& mean, const View& rstd) {
  NormArgs args = base_args(what, x);
  require_elements(what, "weight", weight, x.dtype(), args.width);
  if (kind == Kind::layer) require_elements(what, "bias", bias, x.dtype(), args.width);
  require_like(what, "y", y, x);
  if (mean.defined()) require_elements(what, "mean", mean, DType::f32, args.rows);
  if (rstd.defined()) require_elements(what, "rstd", rstd, DType::f32, args.rows);
  set_kind(kind, args);
  args.eps = eps;
  args.x = x.data();
  args.weight = weight.data();
  args.bias = bias.data();
  args.y = y.data();
  args.mean = mean.defined() ? mean.as<float>() : nullptr;
  args.rstd = rstd.defined() ? rstd.as<float>() : nullptr;
  dispatch(stream, what,
           {reads(x), reads(weight), reads(bias), writes(y), writes(mean), writes(rstd)},
           {.cpu = cpu::norm_forward, .cuda = cuda::norm_forward}, args);
}

void backward_input(Stream& stream, const char* what, Kind kind, const ConstView& dy,
                    const ConstView& x, const ConstView& weight, const ConstView& mean,
                    const ConstView& rstd, const ConstView& residual, const View& dx) {
  NormArgs args = base_args(what, x);
  require_like(what, "dy", dy, x);
  require_elements(what, "weight", weight, x.dtype(), args.width);
  if (kind == Kind::layer) require_elements(what, "mean", mean, DType::f32, args.rows);
  require_elements(what, "rstd", rstd, DType::f32, args.rows);
  if (residual.defined()) require_like(what, "dx_residual", residual, x);
  require_like(what, "dx", dx, x);
  set_kind(kind, args);
  args.x = x.data();
  args.dy = dy.data();
  args.weight = weight.data();
  args.saved_mean = args.rms ? nullptr : mean.as<float>();
  args.saved_rstd = rstd.as<float>();
  args.residual = residual.data();
  args.y = dx.data();
  dispatch(
      stream, what,
      {reads(dy), reads(x), reads(weight), reads(mean), reads(rstd), reads(residual), writes(dx)},
      {.cpu = cpu::norm_backward_input, .cuda = cuda::norm_backward_input}, args);
}

void backward_weight(Stream& stream, const char* what, Kind kind, const ConstView& dy,
                     const ConstView& x, const ConstView& mean, const ConstView& rstd,
                     const View& dweight, const View& dbias, bool accumulate) {
  if (!dweight.defined() && !dbias.defined()) return;
  NormArgs args = base_args(what, x);
  require_like(what, "dy", dy, x);
  if (kind == Kind::layer) require_elements(what, "mean", mean, DType::f32, args.rows);
  require_elements(what, "rstd", rstd, DType::f32, args.rows);
  if (dweight.defined()) require_float_elements(what, "dweight", dweight, args.width);
  if (dbias.defined()) require_float_elements(what, "dbias", dbias, args.width);
  if (dweight.defined() && dbias.defined())
    require_same_dtype(what, "dweight", dweight, "dbias", dbias);
  set_kind(kind, args);
  args.x = x.data();
  args.dy = dy.data();
  args.saved_mean = args.rms ? nullptr : mean.as<float>();
  args.saved_rstd = rstd.as<float>();
  args.gradient_dtype = dweight.defined() ? dweight.dtype() : dbias.dtype();
  args.dweight = dweight.data();
  args.dbias = dbias.data();
  args.accumulate = accumulate;
  dispatch(stream, what,
           {reads(dy), reads(x), reads(mean), reads(rstd), writes(dweight), writes(dbias)},
           {.cpu = cpu::norm_backward_weight, .cuda = cuda::norm_backward_weight}, args);
}

}  // namespace

void layer_norm_forward(Stream& stream, const ConstView& x, const ConstView& weight,
                        const ConstView& bias, float eps, const View& y, const View& mean,
                        const View& rstd) {
  forward(stream, "layer_norm_forward", Kind::layer, x, weight, bias, eps, y, mean, rstd);
}
void layer_norm_backward_input(Stream& stream, const ConstView& dy, const ConstView& x,
                               const ConstView& weight, const ConstView& mean,
                               const ConstView& rstd, const ConstView& dx_residual,
                               const View& dx) {
  backward_input(stream, "layer_norm_backward_input", Kind::layer, dy, x, weight, mean, rstd,
                 dx_residual, dx);
}
void layer_norm_backward_weight(Stream& stream, const ConstView& dy, const ConstView& x,
                                const ConstView& mean, const ConstView& rstd, const View& dweight,
                                const View& dbias, bool accumulate) {
  backward_weight(stream, "layer_norm_backward_weight", Kind::layer, dy, x, mean, rstd, dweight,
                  dbias, accumulate);
}

void rms_norm_forward(Stream& stream, const ConstView& x, const ConstView& weight, float eps,
                      const View& y, const View& rstd, RmsFactor factor) {
  forward(stream, "rms_norm_forward", kind_of(factor), x, weight, {}, eps, y, {}, rstd);
}
void rms_norm_backward_input(Stream& stream, const ConstView& dy, const ConstView& x,
                             const ConstView& weight, const ConstView& rstd,
                             const ConstView& dx_residual, const View& dx, RmsFactor factor) {
  backward_input(stream, "rms_norm_backward_input", kind_of(factor), dy, x, weight, {}, rstd,
                 dx_residual, dx);
}
void rms_norm_backward_weight(Stream& stream, const ConstView& dy, const ConstView& x,
                              const ConstView& rstd, const View& dweight, bool accumulate,
                              RmsFactor factor) {
  backward_weight(stream, "rms_norm_backward_weight", kind_of(factor), dy, x, {}, rstd, dweight, {},
                  accumulate);
}

}  // namespace zero3d::kernels
