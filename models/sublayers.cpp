// Attention and MLP, forward and the input-gradient half of backward. Tensors are released as soon
// as nothing later reads them.
#include "zero3d/models/sublayers.h"

#include <utility>

#include "zero3d/kernels/activation.h"

namespace zero3d {
namespace {

/// residual + dropout(linear(x)); releases x before the sum when nothing else needs it.
Tensor project_onto(BlockContext& context, const Linear& linear, const Dropout& dropout,
                    BatchShape shape, const ConstView& x, Tensor* release,
                    const ConstView& residual) {
  const Shape out{shape.batch, shape.seq, linear.out};
  if (!dropout.active(context)) {
    Tensor y = context.allocate(out);
    linear.forward(context, x, y, residual);
    return y;
  }
  Tensor product = context.allocate(out);
  linear.forward(context, x, product);
  if (release != nullptr) release->reset();
  Tensor y = context.allocate(out);
  dropout.apply(context, product, shape.seq, residual, y);
  return y;
}

}  // namespace

kernels::AttentionShape Attention::kernel_shape(BatchShape shape) const {
  kernels::AttentionShape kernel;
  kernel.batch = shape.batch;
  kernel.seq = shape.seq;
  kernel.heads = heads;
  kernel.kv_heads = kv_heads;
  kernel.head_dim = head_dim;
  kernel.scale = scale;
  return kernel;
}

Columns Attention::part(const std::vector<Tensor>& slots, std::size_t first, int index) const {
  const auto i = static_cast<std::size_t>(index);
  if (inputs.size() == 3) return Columns(slots[first + i].view());
  const std::int64_t begin = index == 0 ? 0 : q_width() + (index - 1) * kv_width();
  return {slots[first].view(), begin, index == 0 ? q_width() : kv_width()};
}

Tensor Attention::forward(BlockContext& context, BatchShape shape, Tensor normed,
                          const ConstView& residual, std::vector<Tensor>& slots) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor& projected = slots[kProjections + i];
    projected = context.allocate({shape.batch, shape.seq, inputs[i].out});
    inputs[i].forward(context, normed, projected);
  }
  normed.reset();
  const Columns q = part(slots, kProjections, 0), k = part(slots, kProjections, 1);
  if (rope) rope->turn(context, shape.seq, {q, k}, false);

  slots[kAttended] = context.allocate({shape.batch, shape.seq, q_width()});
  slots[kLse] = context.allocate(DType::f32, {shape.batch, heads, shape.seq});
  kernels::AttentionShape kernel = kernel_shape(shape);
  if (probabilities.active(context)) {
    kernel.dropout = probabilities.p;
    kernel.key = probabilities.key(context);
  }
  kernels::attention_forward(context.stream(), kernel, q, k, part(slots, kProjections, 2),
                             Columns(slots[kAttended].view()), slots[kLse]);
  if (!context.saves()) {
    for (std::size_t i = 0; i < inputs.size(); ++i) slots[kProjections + i].reset();
    slots[kLse].reset();
  }
  Tensor y =
      project_onto(context, output, output_dropout, shape, slots[kAttended], nullptr, residual);
  if (!context.saves()) slots[kAttended].reset();
  return y;
}

Tensor Attention::backward_inputs(BlockContext& context, BatchShape shape,
                                  std::vector<Tensor>& slots) const {
  const ConstView dy = slots[kMiddleGradient];
  output.backward_bias(context, dy);
  Tensor dattended = context.allocate(slots[kAttended].shape());
  output.backward_input(context, dy, dattended);

  for (std::size_t i = 0; i < inputs.size(); ++i)
    slots[kProjectionGradients + i] = context.allocate(slots[kProjections + i].shape());
  kernels::AttentionShape kernel = kernel_shape(shape);
  if (probabilities.active(context)) {
    kernel.dropout = probabilities.p;
    kernel.key = probabilities.key(context);
  }
  Tensor scratch = context.allocate(DType::f32, {kernels::attention_backward_scratch(kernel)},
                                    Category::workspace);
  const Columns dq = part(slots, kProjectionGradients, 0),
                dk = part(slots, kProjectionGradients, 1);
  kernels::attention_backward(context.stream(), kernel, Columns(dattended.view()),
                              part(slots, kProjections, 0), part(slots, kProjections, 1),
                              part(slots, kProjections, 2), Columns(slots[kAttended].view()),
                              slots[kLse], dq, dk, part(slots, kProjectionGradients, 2), scratch);
  dattended.reset();
  scratch.reset();
  slots[kLse].reset();
  for (std::size_t i = 0; i < inputs.size(); ++i) slots[kProjections + i].reset();
  if (!output.trains_weight(context)) slots[kAttended].reset();
  if (rope) rope->turn(context, shape.seq, {dq, dk}, true);

  Tensor dnormed = context.allocate({shape.batch, shape.seq, inputs[0].in});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor& gradient = slots[kProjectionGradients + i];
    inputs[i].backward_bias(context, gradient);
    inputs[i].backward_input(context, gradient, dnormed, i > 0);
    if (!inputs[i].trains_weight(context)) gradient.reset();
  }
  return dnormed;
}

bool Attention::trains(const BlockContext& context) const {
  bool any = output.trains(context);
  for (const Linear& input : inputs) any = any || input.trains(context);
  return any;
}

Tensor Mlp::forward(BlockContext& context, BatchShape shape, Tensor normed,
                    const ConstView& residual, std::vector<Tensor>& slots) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    slots[kUps + i] = context.allocate({shape.batch, shape.seq, inputs[i].out});
    inputs[i].forward(context, normed, slots[kUps + i]);
  }
  normed.reset();
  Tensor activated = context.allocate(slots[kUps].shape());
  if (gated()) {
    kernels::swiglu_forward(context.stream(), Columns(slots[kUps].view()),
                            Columns(slots[kUps + 1].view()), activated);
  } else {
    kernels::gelu_forward(context.stream(), slots[kUps], activated);
  }
  if (!context.saves())
    for (std::size_t i = 0; i < inputs.size(); ++i) slots[kUps + i].reset();
  return project_onto(context, output, output_dropout, shape, activated, &activated, residual);
}

Tensor Mlp::backward_inputs(BlockContext& context, std::vector<Tensor>& slots, bool wanted) const {
  Stream& stream = context.stream();
  const bool keeps_activated = output.trains_weight(context);
  output.backward_bias(context, slots[kOutputGradient]);
  Tensor dactivated = context.allocate(slots[kUps].shape());
  output.backward_input(context, slots[kOutputGradient], dactivated);

  // The activation is recomputed into the buffer that is free by then: the pre-activation's own
  // (GELU) or that of its gradient (SwiGLU).
  if (gated()) {
    const Columns gate(slots[kUps].view()), up(slots[kUps + 1].view());
    for (std::size_t i = 0; i < 2; ++i)
      slots[kUpGradients + i] = context.allocate(slots[kUps].shape());
    kernels::swiglu_backward(stream, dactivated, gate, up, Columns(slots[kUpGradients].view()),
                             Columns(slots[kUpGradients + 1].view()));
    if (keeps_activated) {
      kernels::swiglu_forward(stream, gate, up, dactivated);
      slots[kActivated] = std::move(dactivated);
    } else {
      dactivated.reset();
    }
    slots[kUps].reset();
    slots[kUps + 1].reset();
  } else {
    kernels::gelu_backward(stream, dactivated, slots[kUps], dactivated);
    slots[kUpGradients] = std::move(dactivated);
    if (keeps_activated) {
      kernels::gelu_forward(stream, slots[kUps], slots[kUps]);
      slots[kActivated] = std::move(slots[kUps]);
    }
    slots[kUps].reset();
  }

  Tensor dnormed;
  if (wanted) {
    Shape shape = slots[kUpGradients].shape();
    shape[shape.rank() - 1] = inputs[0].in;
    dnormed = context.allocate(shape);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor& gradient = slots[kUpGradients + i];
    inputs[i].backward_bias(context, gradient);
    if (wanted) inputs[i].backward_input(context, gradient, dnormed, i > 0);
    if (!inputs[i].trains_weight(context)) gradient.reset();
  }
  return dnormed;
}

bool Mlp::trains_inputs(const BlockContext& context) const {
  bool any = false;
  for (const Linear& input : inputs) any = any || input.trains(context);
  return any;
}

}  // namespace zero3d
