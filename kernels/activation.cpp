// Arguments of the activations and dropout, checked and handed to the back end.
#include "zero3d/kernels/activation.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/activation.h"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels {
namespace {

GatedArgs gated_args(const char* what, GateFunction function, const ConstView& y,
                     const ConstColumns& gate, const ConstColumns& up) {
  require_float(what, "y", y);
  GatedArgs args;
  args.function = function;
  args.dtype = y.dtype();
  args.rows = y.shape().rows();
  args.width = y.shape().last();
  require_columns(what, "gate", gate, args.dtype, args.rows, args.width);
  require_columns(what, "up", up, args.dtype, args.rows, args.width);
  args.gate = rows_of(gate);
  args.up = rows_of(up);
  return args;
}

void gated_forward(Stream& stream, const char* what, GateFunction function,
                   const ConstColumns& gate, const ConstColumns& up, const View& y) {
  GatedArgs args = gated_args(what, function, y, gate, up);
  args.y = y.data();
  dispatch(stream, what, {reads(gate.matrix), reads(up.matrix), writes(y)},
           {.cpu = cpu::gated_forward, .cuda = cuda::gated_forward}, args);
}

void gated_backward(Stream& stream, const char* what, GateFunction function, const ConstView& dy,
                    const ConstColumns& gate, const ConstColumns& up, const Columns& dgate,
                    const Columns& dup) {
  GatedArgs args = gated_args(what, function, dy, gate, up);
  require_columns(what, "dgate", dgate, args.dtype, args.rows, args.width);
  require_columns(what, "dup", dup, args.dtype, args.rows, args.width);
  args.dy = dy.data();
  args.dgate = rows_of(dgate);
  args.dup = rows_of(dup);
  dispatch(
      stream, what,
      {reads(dy), reads(gate.matrix), reads(up.matrix), writes(dgate.matrix), writes(dup.matrix)},
      {.cpu = cpu::gated_backward, .cuda = cuda::gated_backward}, args);
}

}  // namespace

void gelu_forward(Stream& stream, const ConstView& x, const View& y) {
  constexpr const char* kWhat = "gelu_forward";
  require_float(kWhat, "x", x);
  require_like(kWhat, "y", y, x);
  const GeluArgs args{x.dtype(), x.numel(), x.data(), nullptr, y.data()};
  dispatch(stream, kWhat, {reads(x), writes(y)}, {.cpu = cpu::gelu, .cuda = cuda::gelu}, args);
}

void gelu_backward(Stream& stream, const ConstView& dy, const ConstView& x, const View& dx) {
  constexpr const char* kWhat = "gelu_backward";
  require_float(kWhat, "x", x);
  require_like(kWhat, "dy", dy, x);
  require_like(kWhat, "dx", dx, x);
  const GeluArgs args{x.dtype(), x.numel(), x.data(), dy.data(), dx.data()};
  dispatch(stream, kWhat, {reads(dy), reads(x), writes(dx)}, {.cpu = cpu::gelu, .cuda = cuda::gelu},
           args);
}

void swiglu_forward(Stream& stream, const ConstColumns& gate, const ConstColumns& up,
                    const View& y) {
  gated_forward(stream, "swiglu_forward", GateFunction::silu, gate, up, y);
}

void swiglu_backward(Stream& stream, const ConstView& dy, const ConstColumns& gate,
                     const ConstColumns& up, const Columns& dgate, const Columns& dup) {
  gated_backward(stream, "swiglu_backward", GateFunction::silu, dy, gate, up, dgate, dup);
}

void geglu_forward(Stream& stream, const ConstColumns& gate, const ConstColumns& up,
                   const View& y) {
  gated_forward(stream, "geglu_forward", GateFunction::gelu, gate, up, y);
}

void geglu_backward(Stream& stream, const ConstView& dy, const ConstColumns& gate,
                    const ConstColumns& up, const Columns& dgate, const Columns& dup) {
  gated_backward(stream, "geglu_backward", GateFunction::gelu, dy, gate, up, dgate, dup);
}

void dropout(Stream& stream, const ConstView& x, float p, const RandomKey& key,
             const SampleRows& rows, const ConstView& residual, const View& y) {
  constexpr const char* kWhat = "dropout";
  require_float(kWhat, "x", x);
  require_like(kWhat, "y", y, x);
  if (residual.defined()) require_like(kWhat, "residual", residual, x);
  require(p >= 0.0f && p <= 1.0f, kWhat, "expected a probability in [0, 1], but p is ", p);
  const std::int64_t all = x.shape().rows();
  require(rows.count > 0 && rows.first >= 0 && all % rows.count == 0, kWhat, "expected the ", all,
          " rows of x to be whole samples, but a sample has ", rows.count, " from row ",
          rows.first);
  DropoutArgs args;
  args.dtype = x.dtype();
  args.samples = all / rows.count;
  args.per_sample = rows.count * x.shape().last();
  args.first_element = rows.first * x.shape().last();
  args.p = p;
  args.key = key;
  args.x = x.data();
  args.residual = residual.data();
  args.y = y.data();
  dispatch(stream, kWhat, {reads(x), reads(residual), writes(y)},
           {.cpu = cpu::dropout, .cuda = cuda::dropout}, args);
}

}  // namespace zero3d::kernels
