// Arguments of attention and rope, checked and handed to the back end.
#include "zero3d/kernels/attention.h"

#include <algorithm>

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/attention.h"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels {
namespace {

void require_shape(const char* what, const AttentionShape& shape) {
  require(shape.batch > 0 && shape.seq > 0 && shape.heads > 0 && shape.kv_heads > 0 &&
              shape.head_dim > 0 && shape.heads % shape.kv_heads == 0,
          what, "expected positive extents and heads to be a multiple of kv_heads, but batch is ",
          shape.batch, ", seq ", shape.seq, ", heads ", shape.heads, ", kv_heads ", shape.kv_heads,
          ", head_dim ", shape.head_dim);
  require(shape.window >= 0, what, "expected a window of 0 (none) or more keys, but it is ",
          shape.window);
  require(shape.dropout >= 0 && shape.dropout <= 1, what,
          "expected a dropout in [0, 1], but it is ", shape.dropout);
}

AttentionArgs attention_args(const char* what, const AttentionShape& shape, const ConstColumns& q,
                             const ConstColumns& k, const ConstColumns& v) {
  require_shape(what, shape);
  require_float(what, "q's matrix", q.matrix);
  AttentionArgs args;
  args.dtype = q.matrix.dtype();
  args.batch = shape.batch;
  args.seq = shape.seq;
  args.heads = shape.heads;
  args.kv_heads = shape.kv_heads;
  args.head_dim = shape.head_dim;
  args.window = shape.window;
  args.scale = shape.scale;
  args.dropout = shape.dropout;
  args.head_offset = shape.head_offset;
  args.key = shape.key;
  const std::int64_t rows = shape.batch * shape.seq;
  require_columns(what, "q", q, args.dtype, rows, shape.heads * shape.head_dim);
  require_columns(what, "k", k, args.dtype, rows, shape.kv_heads * shape.head_dim);
  require_columns(what, "v", v, args.dtype, rows, shape.kv_heads * shape.head_dim);
  args.q = rows_of(q);
  args.k = rows_of(k);
  args.v = rows_of(v);
  return args;
}

}  // namespace

void attention_forward(Stream& stream, const AttentionShape& shape, const ConstColumns& q,
                       const ConstColumns& k, const ConstColumns& v, const Columns& out,
                       const View& lse) {
  constexpr const char* kWhat = "attention_forward";
  AttentionArgs args = attention_args(kWhat, shape, q, k, v);
  const std::int64_t rows = shape.batch * shape.seq;
  require_columns(kWhat, "out", out, args.dtype, rows, shape.heads * shape.head_dim);
  require_elements(kWhat, "lse", lse, DType::f32, rows * shape.heads);
  args.out = rows_of(out);
  args.lse = lse.as<float>();
  dispatch(stream, kWhat,
           {reads(q.matrix), reads(k.matrix), reads(v.matrix), writes(out.matrix), writes(lse)},
           {.cpu = cpu::attention_forward, .cuda = cuda::attention_forward}, args);
}

void attention_backward(Stream& stream, const AttentionShape& shape, const ConstColumns& dout,
                        const ConstColumns& q, const ConstColumns& k, const ConstColumns& v,
                        const ConstColumns& out, const ConstView& lse, const Columns& dq,
                        const Columns& dk, const Columns& dv, const View& scratch) {
  constexpr const char* kWhat = "attention_backward";
  AttentionGradientArgs args;
  args.forward = attention_args(kWhat, shape, q, k, v);
  const DType dtype = args.forward.dtype;
  const std::int64_t rows = shape.batch * shape.seq;
  const std::int64_t width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  require_columns(kWhat, "dout", dout, dtype, rows, width);
  require_columns(kWhat, "out", out, dtype, rows, width);
  require_columns(kWhat, "dq", dq, dtype, rows, width);
  require_columns(kWhat, "dk", dk, dtype, rows, kv_width);
  require_columns(kWhat, "dv", dv, dtype, rows, kv_width);
  require_elements(kWhat, "lse", lse, DType::f32, rows * shape.heads);
  const std::int64_t needed = attention_backward_scratch(shape);
  require(scratch.defined() && scratch.dtype() == DType::f32 && scratch.numel() >= needed, kWhat,
          "expected a scratch of at least ", needed, " fp32 elements, but ",
          describe("scratch", scratch));
  args.dout = rows_of(dout);
  args.out = rows_of(out);
  args.lse = lse.as<float>();
  args.dq = rows_of(dq);
  args.dk = rows_of(dk);
  args.dv = rows_of(dv);
  args.scratch = scratch.as<float>();
  dispatch(
      stream, kWhat,
      {reads(dout.matrix), reads(q.matrix), reads(k.matrix), reads(v.matrix), reads(out.matrix),
       reads(lse), writes(dq.matrix), writes(dk.matrix), writes(dv.matrix), writes(scratch)},
      {.cpu = cpu::attention_backward, .cuda = cuda::attention_backward}, args);
}

std::int64_t attention_backward_scratch(const AttentionShape& shape) {
  require_shape("attention_backward_scratch", shape);
  // What the GPU's body needs is less unless a key/value head has very many query heads.
  return std::max(
      cpu::attention_scratch(shape.batch, shape.seq, shape.heads, shape.kv_heads, shape.head_dim),
      shape.batch * shape.heads * shape.seq);
}

void rope(Stream& stream, const Columns& x, const SampleRows& seq, std::int64_t head_dim,
          std::span<const float> inverse_frequencies, float attention_scaling, bool inverse) {
  constexpr const char* kWhat = "rope";
  require_float(kWhat, "x's matrix", x.matrix);
  const std::int64_t rows = x.matrix.shape().rows();
  require(head_dim > 0 && head_dim % 2 == 0 && x.count % head_dim == 0, kWhat,
          "expected an even head_dim that divides the columns, but head_dim is ", head_dim,
          " and there are ", x.count, " columns");
  require(seq.count > 0 && seq.first >= 0 && rows % seq.count == 0, kWhat,
          "expected seq to divide the ", rows, " rows, but seq is ", seq.count, " from row ",
          seq.first);
  require_columns(kWhat, "x", x, x.matrix.dtype(), rows, x.count);
  require(static_cast<std::int64_t>(inverse_frequencies.size()) == head_dim / 2, kWhat,
          "expected head_dim / 2 inverse_frequencies, but head_dim is ", head_dim,
          " and there are ", inverse_frequencies.size());
  RopeArgs args;
  args.dtype = x.matrix.dtype();
  args.batch = rows / seq.count;
  args.seq = seq.count;
  args.first_position = seq.first;
  args.heads = x.count / head_dim;
  args.head_dim = head_dim;
  args.x = rows_of(x);
  args.inverse_frequencies.assign(inverse_frequencies.begin(), inverse_frequencies.end());
  args.attention_scaling = attention_scaling;
  args.inverse = inverse;
  dispatch(stream, kWhat, {writes(x.matrix)}, {.cpu = cpu::rope, .cuda = cuda::rope},
           std::move(args));
}

}  // namespace zero3d::kernels
