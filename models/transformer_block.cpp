// The order of a transformer block's work.
#include "zero3d/models/transformer_block.h"

#include <utility>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// Of whole samples.
BatchShape batch_shape(const BlockContext& context, const Shape& hidden) {
  return {hidden[0], context.shape_inside(hidden)[1]};
}

/// norm(x) again, all rows of it, for the weight gradients of the linears that read it.
Tensor renormed(BlockContext& context, const Norm& norm, Tensor& x) {
  Tensor y = context.allocate(x.shape());
  norm.forward(context, x, y, {}, {});
  x.reset();
  return context.enter(std::move(y));
}

}  // namespace

Values TransformerBlock::forward(BlockContext& context, Values inputs, Saved& saved) {
  const auto& [name, parameters, norm1, attention, norm2, mlp] = parts_;
  const Shape hidden = inputs[0].shape();
  const BatchShape shape = batch_shape(context, hidden);
  const Shape statistics{hidden.rows()};
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
  const BatchShape shape = batch_shape(context, slots[kInput].shape());
  const bool wants_attention =
      context.wants_input_gradient() || norm1.trains(context) || attention.trains(context);
  const bool wants_norm2 = wants_attention || norm2.trains(context);

  // The gradient of a sublayer's output goes two ways: along the residual path as it is, and into
  // the sublayer through its dropout, all rows of it. Where it is the same, both read one tensor.
  const auto enter = [&](Tensor& dy, const Dropout& dropout, Slot slot) {
    if (dropout.active(context)) {
      Tensor dropped = context.allocate(dy.shape());
      dropout.apply(context, dy, {}, dropped);
      slots[slot] = context.enter(std::move(dropped));
    } else if (context.tp().splits_sequence()) {
      slots[slot] = context.all_rows(dy);
    } else {
      slots[slot] = std::move(dy);
    }
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

}  // namespace zero3d
