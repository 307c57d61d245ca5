// The order of a transformer block's work, and the bytes that order needs.
#include "zero3d/models/transformer_block.h"

#include <algorithm>
#include <utility>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

BatchShape batch_shape(const Shape& hidden) { return {hidden[0], hidden[1]}; }

/// norm(x) again, for the weight gradients of the linears that read it.
Tensor renormed(BlockContext& context, const Norm& norm, Tensor& x) {
  Tensor y = context.allocate(x.shape());
  norm.forward(context, x, y, {}, {});
  x.reset();
  return y;
}

}  // namespace

Values TransformerBlock::forward(BlockContext& context, Values inputs, Saved& saved) {
  const auto& [name, parameters, norm1, attention, norm2, mlp] = parts_;
  const Shape hidden = inputs[0].shape();
  const BatchShape shape = batch_shape(hidden);
  const Shape statistics{shape.rows()};
  std::vector<Tensor> slots(kForwardSlots);
  slots[kInput] = std::move(inputs[0]);

  const auto normed = [&](const Norm& norm, const Tensor& x, Slot mean, Slot rstd) {
    if (context.saves()) {
      if (norm.has_mean()) slots[mean] = context.allocate(DType::f32, statistics);
      slots[rstd] = context.allocate(DType::f32, statistics);
    }
    Tensor y = context.allocate(hidden);
    norm.forward(context, x, y, slots[mean], slots[rstd]);
    return y;
  };
  slots[kMiddle] = attention.forward(context, shape, normed(norm1, slots[kInput], kMean1, kRstd1),
                                     slots[kInput], slots);
  if (!context.saves()) slots[kInput].reset();
  inputs[0] = mlp.forward(context, shape, normed(norm2, slots[kMiddle], kMean2, kRstd2),
                          slots[kMiddle], slots);
  if (context.saves()) saved.tensors = std::move(slots);
  return inputs;
}

Tensor TransformerBlock::norm_backward(BlockContext& context, const Norm& norm, Tensor dnormed,
                                       const ConstView& x, Tensor& mean, Tensor& rstd,
                                       const ConstView& dy, Tensor spent, bool wanted) {
  norm.backward_weight(context, dnormed, x, mean, rstd);
  Tensor dx;
  if (wanted) {
    dx = spent.defined() ? std::move(spent) : context.allocate(dnormed.shape());
    norm.backward_input(context, dnormed, x, mean, rstd, dy, dx);
  }
  mean.reset();
  rstd.reset();
  return dx;
}

Values TransformerBlock::backward_inputs(BlockContext& context, Values output_gradients,
                                         Saved& saved) {
  const auto& [name, parameters, norm1, attention, norm2, mlp] = parts_;
  std::vector<Tensor>& slots = saved.tensors;
  slots.resize(kSlots);
  const BatchShape shape = batch_shape(slots[kInput].shape());
  const bool wants_attention =
      context.wants_input_gradient() || norm1.trains(context) || attention.trains(context);
  const bool wants_norm2 = wants_attention || norm2.trains(context);

  // The gradient of a sublayer's output goes two ways: along the residual path as it is, and into
  // the sublayer through its dropout. Without dropout both read one tensor.
  const auto enter = [&](Tensor& dy, const Dropout& dropout, Slot slot) {
    if (!dropout.active(context)) {
      slots[slot] = std::move(dy);
      return;
    }
    slots[slot] = context.allocate(dy.shape());
    dropout.apply(context, dy, shape.seq, {}, slots[slot]);
  };

  Tensor dy = std::move(output_gradients[0]);
  const ConstView dy_view = dy;
  enter(dy, mlp.output_dropout, kOutputGradient);
  Tensor dnormed = mlp.backward_inputs(context, slots, wants_norm2);
  Tensor dmiddle;
  if (wants_norm2) {
    dmiddle = norm_backward(context, norm2, std::move(dnormed), slots[kMiddle], slots[kMean2],
                            slots[kRstd2], dy_view, std::move(dy), wants_attention);
  }
  if (!mlp.output.trains_weight(context)) slots[kOutputGradient].reset();

  output_gradients[0].reset();
  if (wants_attention) {
    const ConstView dmiddle_view = dmiddle;
    enter(dmiddle, attention.output_dropout, kMiddleGradient);
    dnormed = attention.backward_inputs(context, shape, slots);
    output_gradients[0] = norm_backward(context, norm1, std::move(dnormed), slots[kInput],
                                        slots[kMean1], slots[kRstd1], dmiddle_view,
                                        std::move(dmiddle), context.wants_input_gradient());
  }
  if (!attention.output.trains_weight(context)) slots[kMiddleGradient].reset();
  return output_gradients;
}

void TransformerBlock::backward_weights(BlockContext& context, Saved& saved) {
  const auto& [name, parameters, norm1, attention, norm2, mlp] = parts_;
  std::vector<Tensor>& slots = saved.tensors;
  const auto input_weights = [&](const std::vector<Linear>& inputs, const Norm& norm, Slot x,
                                 Slot gradients) {
    Tensor normed;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].trains_weight(context)) continue;
      if (!normed.defined()) normed = renormed(context, norm, slots[x]);
      inputs[i].backward_weight(context, normed, slots[gradients + i]);
      slots[gradients + i].reset();
    }
  };
  if (mlp.output.trains_weight(context))
    mlp.output.backward_weight(context, slots[kActivated], slots[kOutputGradient]);
  slots[kActivated].reset();
  slots[kOutputGradient].reset();
  input_weights(mlp.inputs, norm2, kMiddle, kUpGradients);
  if (attention.output.trains_weight(context))
    attention.output.backward_weight(context, slots[kAttended], slots[kMiddleGradient]);
  slots[kAttended].reset();
  slots[kMiddleGradient].reset();
  input_weights(attention.inputs, norm1, kInput, kProjectionGradients);
  saved.tensors.clear();
}

Block::ActivationBytes TransformerBlock::activation_bytes(std::int64_t batch, std::int64_t seq,
                                                          DType dtype) const {
  const Attention& attention = parts_.attention;
  const std::int64_t rows = batch * seq, row = rows * static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t hidden = row * parts_.mlp.output.out;
  const std::int64_t wide = row * parts_.mlp.output.in;
  const std::int64_t ups = static_cast<std::int64_t>(parts_.mlp.inputs.size());
  const std::int64_t targets = rows * 4;

  ActivationBytes bytes;
  bytes.saved = 2 * hidden + parts_.norm1.statistics_bytes(rows) +
                parts_.norm2.statistics_bytes(rows) +
                row * (2 * attention.q_width() + 2 * attention.kv_width()) +
                rows * attention.heads * 4 + ups * wide;
  // At the MLP's output projection: activation and output; with dropout, product and output.
  const bool dropped = parts_.mlp.output_dropout.p > 0;
  bytes.forward_peak = bytes.saved + targets + hidden + (dropped ? std::max(wide, hidden) : wide);
  bytes.backward_peak = backward_peak(batch, seq, dtype, bytes.saved);
  return bytes;
}

std::int64_t TransformerBlock::backward_peak(std::int64_t batch, std::int64_t seq, DType dtype,
                                             std::int64_t saved) const {
  const Attention& attention = parts_.attention;
  const std::int64_t rows = batch * seq, row = rows * static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t hidden = row * parts_.mlp.output.out;
  const std::int64_t wide = row * parts_.mlp.output.in;
  const std::int64_t attended = row * attention.q_width();
  const std::int64_t projections = row * (attention.q_width() + 2 * attention.kv_width());
  const std::int64_t scratch =
      4 * kernels::attention_backward_scratch(attention.kernel_shape({batch, seq}));
  const std::int64_t mlp_dropped = parts_.mlp.output_dropout.p > 0 ? hidden : 0;
  const std::int64_t attention_dropped = attention.output_dropout.p > 0 ? hidden : 0;

  // Inside the MLP: gradients of both sides of the activation, which SwiGLU cannot share.
  const std::int64_t activation =
      saved + hidden + mlp_dropped + (parts_.mlp.gated() ? 3 * wide : wide);
  // At the second norm: the activation's recomputed value took the place of what was saved; both
  // gradients of the residual path and the norm's own.
  const std::int64_t norm2 = saved + 3 * hidden + wide;
  const std::int64_t middle =
      saved + 2 * hidden + wide - parts_.norm2.statistics_bytes(rows) + attention_dropped;
  const std::int64_t attend = middle + attended + projections + scratch;
  const std::int64_t norm1 =
      middle - rows * attention.heads * 4 + (attention_dropped > 0 ? hidden : 2 * hidden);
  return std::max({activation, norm2, attend, norm1});
}

}  // namespace zero3d
