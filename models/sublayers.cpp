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
  kernel.window = window;
  kernel.scale = scale;
  return kernel;
}

Columns Attention::part(const std::vector<Tensor>& slots, std::size_t first, int index) const {
  const auto i = static_cast<std::size_t>(index);
  if (inputs.size() == 3) return Columns(slots[first + i].view());
  const std::int64_t begin = index == 0 ? 0 : q_width() + (index - 1) * kv_width();
  return {slots[first].view(), begin, index == 0 ? q_width() : kv_width()};
}

void Attention::norm_heads(BlockContext& context, std::vector<Tensor>& slots) const {
  for (std::size_t i = 0; i < norms.size(); ++i) {
    Tensor projected = std::move(slots[kProjections + i]);
    const Shape by_head{projected.shape().numel() / head_dim, head_dim};
    Tensor& normed = slots[kProjections + i];
    normed = context.allocate(projected.shape());
    if (context.saves()) slots[kHeadRstd + i] = context.allocate(DType::f32, {by_head[0]});
    norms[i].forward(context, projected.view().reshaped(by_head), normed.view().reshaped(by_head),
                     {}, slots[kHeadRstd + i]);
    if (context.saves()) slots[kUnnormed + i] = std::move(projected);
  }
}

void Attention::norm_heads_backward(BlockContext& context, std::vector<Tensor>& slots) const {
  for (std::size_t i = 0; i < norms.size(); ++i) {
    Tensor& projected = slots[kUnnormed + i];
    const Shape by_head{projected.shape().numel() / head_dim, head_dim};
    const ConstView x = projected.view().reshaped(by_head), rstd = slots[kHeadRstd + i];
    const View gradient = slots[kProjectionGradients + i].view().reshaped(by_head);
    norms[i].backward_weight(context, gradient, x, {}, rstd);
    norms[i].backward_input(context, gradient, x, {}, rstd, {}, gradient);
    projected.reset();
    slots[kHeadRstd + i].reset();
  }
}

Tensor Attention::forward(BlockContext& context, BatchShape shape, Tensor normed,
                          const ConstView& residual, std::vector<Tensor>& slots) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor& projected = slots[kProjections + i];
    projected = context.allocate({shape.batch, shape.seq, inputs[i].out});
    inputs[i].forward(context, normed, projected);
  }
  normed.reset();
  attend(context, shape, slots);
  Tensor y =
      project_onto(context, output, output_dropout, shape, slots[kAttended], nullptr, residual);
  if (!context.saves()) slots[kAttended].reset();
  return y;
}

void Attention::attend(BlockContext& context, BatchShape shape, std::vector<Tensor>& slots) const {
  norm_heads(context, slots);
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
}

Tensor Attention::backward_inputs(BlockContext& context, BatchShape shape,
                                  std::vector<Tensor>& slots) const {
  const ConstView dy = slots[kMiddleGradient];
  output.backward_bias(context, dy);
  Tensor dattended = context.allocate(slots[kAttended].shape());
  output.backward_input(context, dy, dattended);
  attend_backward(context, shape, std::move(dattended), slots);
  if (!output.trains_weight(context)) slots[kAttended].reset();

  Tensor dnormed = context.allocate({shape.batch, shape.seq, inputs[0].in});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor& gradient = slots[kProjectionGradients + i];
    inputs[i].backward_bias(context, gradient);
    inputs[i].backward_input(context, gradient, dnormed, i > 0);
    if (!inputs[i].trains_weight(context)) gradient.reset();
  }
  return dnormed;
}

void Attention::attend_backward(BlockContext& context, BatchShape shape, Tensor dattended,
                                std::vector<Tensor>& slots) const {
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
  if (rope) rope->turn(context, shape.seq, {dq, dk}, true);
  norm_heads_backward(context, slots);
}

bool Attention::trains(const BlockContext& context) const {
  bool any = output.trains(context);
  for (const Linear& input : inputs) any = any || input.trains(context);
  for (const Norm& norm : norms) any = any || norm.trains(context);
  return any;
}

void Mlp::gate(Stream& stream, const ConstColumns& opening, const ConstColumns& up,
               const View& y) const {
  const auto forward = gelu_gate ? kernels::geglu_forward : kernels::swiglu_forward;
  forward(stream, opening, up, y);
}

Tensor Mlp::forward(BlockContext& context, BatchShape shape, Tensor normed,
                    const ConstView& residual, std::vector<Tensor>& slots) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    slots[kUps + i] = context.allocate({shape.batch, shape.seq, inputs[i].out});
    inputs[i].forward(context, normed, slots[kUps + i]);
  }
  normed.reset();
  Tensor x = activated(context, slots);
  if (!context.saves())
    for (std::size_t i = 0; i < inputs.size(); ++i) slots[kUps + i].reset();
  return project_onto(context, output, output_dropout, shape, x, &x, residual);
}

Tensor Mlp::activated(BlockContext& context, const std::vector<Tensor>& slots) const {
  Tensor y = context.allocate(slots[kUps].shape());
  if (gated()) {
    gate(context.stream(), ConstColumns(slots[kUps].view()), ConstColumns(slots[kUps + 1].view()),
         y);
  } else {
    kernels::gelu_forward(context.stream(), slots[kUps], y);
  }
  return y;
}

void Mlp::activate_backward(BlockContext& context, Tensor dactivated,
                            std::vector<Tensor>& slots) const {
  if (gated()) {
    const ConstColumns opening(slots[kUps].view()), up(slots[kUps + 1].view());
    for (std::size_t i = 0; i < 2; ++i)
      slots[kUpGradients + i] = context.allocate(slots[kUps].shape());
    const auto backward = gelu_gate ? kernels::geglu_backward : kernels::swiglu_backward;
    backward(context.stream(), dactivated, opening, up, Columns(slots[kUpGradients].view()),
             Columns(slots[kUpGradients + 1].view()));
  } else {
    kernels::gelu_backward(context.stream(), dactivated, slots[kUps], dactivated);
    slots[kUpGradients] = std::move(dactivated);
  }
  slots[kUps].reset();
  slots[kUps + 1].reset();
}

Tensor Mlp::backward_inputs(BlockContext& context, std::vector<Tensor>& slots, bool wanted) const {
  Stream& stream = context.stream();
  const bool keeps_activated = output.trains_weight(context);
  output.backward_bias(context, slots[kOutputGradient]);
  Tensor dactivated = context.allocate(slots[kUps].shape());
  output.backward_input(context, slots[kOutputGradient], dactivated);

  // The activation is recomputed into the buffer that is free by then: the pre-activation's own
  // (GELU) or that of its gradient (gated).
  if (gated()) {
    const Columns opening(slots[kUps].view()), up(slots[kUps + 1].view());
    for (std::size_t i = 0; i < 2; ++i)
      slots[kUpGradients + i] = context.allocate(slots[kUps].shape());
    const auto backward = gelu_gate ? kernels::geglu_backward : kernels::swiglu_backward;
    backward(stream, dactivated, opening, up, Columns(slots[kUpGradients].view()),
             Columns(slots[kUpGradients + 1].view()));
    if (keeps_activated) {
      gate(stream, opening, up, dactivated);
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
