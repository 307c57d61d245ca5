// Attention and MLP, forward and the input-gradient half of backward. Tensors are released as soon
// as nothing later reads them.
#include "zero3d/models/sublayers.h"

#include <algorithm>
#include <span>
#include <utility>

#include "zero3d/kernels/activation.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

/// The rows of `x` that `y` is of, from `first` on, as a matrix.
ConstView rows_of(const ConstView& x, std::int64_t first, const View& y) {
  const std::int64_t width = x.shape().last(), rows = y.shape()[0];
  return x.flat(first * width, rows * width).reshaped({rows, width});
}

/// dx of linears that read one x, from their gradients; undefined where dx is. What no weight
/// gradient needs is released.
Tensor input_gradient(BlockContext& context, const std::vector<Linear>& linears,
                      std::span<Tensor> gradients, Tensor dx) {
  for (std::size_t i = 0; i < linears.size(); ++i) linears[i].backward_bias(context, gradients[i]);
  const auto product = [&](std::int64_t first, const View& rows) {
    for (std::size_t i = 0; i < linears.size(); ++i)
      linears[i].backward_input(context, rows_of(gradients[i], first, rows), rows, i > 0);
    if (first + rows.shape()[0] < gradients[0].shape().rows()) return;
    for (std::size_t i = 0; i < linears.size(); ++i)
      if (!linears[i].trains_weight(context)) gradients[i].reset();
  };
  if (dx.defined()) return context.leave(std::move(dx), product);
  for (std::size_t i = 0; i < linears.size(); ++i)
    if (!linears[i].trains_weight(context)) gradients[i].reset();
  return dx;
}

/// residual + dropout(linear(x)), out of the parallel region; releases x before the sum when
/// nothing else needs it.
Tensor project_onto(BlockContext& context, const Linear& linear, const Dropout& dropout,
                    BatchShape shape, const ConstView& x, Tensor* release,
                    const ConstView& residual) {
  const Shape out{shape.batch, shape.seq, linear.out};
  const bool drops = dropout.active(context);
  Tensor product = context.allocate(out);
  if (context.tp().alone() && !drops) {
    linear.forward(context, x, product, residual);
    return product;
  }
  const std::int64_t rows = shape.rows();
  product = context.leave(std::move(product), [&](std::int64_t first, const View& y) {
    linear.forward(context, rows_of(x, first, y), y);
    if (release != nullptr && first + y.shape()[0] == rows) release->reset();
  });
  if (!drops) {
    kernels::add(context.stream(), residual, product);
    return product;
  }
  Tensor y = context.allocate(product.shape());
  dropout.apply(context, product, residual, y);
  return y;
}

}  // namespace

HeadsHere Attention::here(const BlockContext& context) const {
  return heads_of_rank({heads, kv_heads, 0}, context.tp().rank(), context.tp().size());
}

std::int64_t Attention::width(const HeadsHere& part, std::size_t index) const {
  if (inputs.size() == 1) return (part.heads + 2 * part.kv_heads) * head_dim;
  return (index == 0 ? part.heads : part.kv_heads) * head_dim;
}

kernels::AttentionShape Attention::kernel_shape(BlockContext& context, const HeadsHere& part,
                                                BatchShape shape) const {
  kernels::AttentionShape kernel;
  kernel.batch = shape.batch;
  kernel.seq = context.sp().whole(shape.seq);
  kernel.heads = part.heads;
  kernel.kv_heads = part.kv_heads;
  kernel.head_dim = head_dim;
  kernel.window = window;
  kernel.scale = scale;
  kernel.head_offset = part.first;
  if (probabilities.active(context)) {
    kernel.dropout = probabilities.p;
    kernel.key = probabilities.key(context);
  }
  return kernel;
}

Columns Attention::part(const HeadsHere& part, const std::vector<Tensor>& slots, std::size_t first,
                        int index) const {
  const auto i = static_cast<std::size_t>(index);
  if (inputs.size() == 3) return Columns(slots[first + i].view());
  const std::int64_t q = part.heads * head_dim, kv = part.kv_heads * head_dim;
  return {slots[first].view(), index == 0 ? 0 : q + (index - 1) * kv, index == 0 ? q : kv};
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
  normed = context.enter(std::move(normed));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor& projected = slots[kProjections + i];
    projected = context.allocate({shape.batch, shape.seq, inputs[i].out_here(context)});
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
  const HeadsHere heads_here = here(context);
  const auto columns = [&](int index) { return part(heads_here, slots, kProjections, index); };
  const Columns q = columns(0), k = columns(1);
  if (rope) rope->turn(context, shape.seq, {q, k}, false);
  if (!context.sp().alone()) return attend_whole(context, shape, slots);

  slots[kAttended] = context.allocate({shape.batch, shape.seq, q.count});
  slots[kLse] = context.allocate(DType::f32, {shape.batch, heads_here.heads, shape.seq});
  kernels::attention_forward(context.stream(), kernel_shape(context, heads_here, shape), q, k,
                             columns(2), Columns(slots[kAttended].view()), slots[kLse]);
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
  return input_gradient(context, inputs, std::span(slots).subspan(kProjectionGradients),
                        std::move(dnormed));
}

void Attention::attend_backward(BlockContext& context, BatchShape shape, Tensor dattended,
                                std::vector<Tensor>& slots) const {
  const HeadsHere heads_here = here(context);
  const auto columns = [&](std::size_t first, int index) {
    return part(heads_here, slots, first, index);
  };
  if (!context.sp().alone()) {
    attend_whole_backward(context, shape, std::move(dattended), slots);
  } else {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      slots[kProjectionGradients + i] = context.allocate(slots[kProjections + i].shape());
    const kernels::AttentionShape kernel = kernel_shape(context, heads_here, shape);
    Tensor scratch = context.allocate(DType::f32, {kernels::attention_backward_scratch(kernel)},
                                      Category::workspace);
    kernels::attention_backward(
        context.stream(), kernel, Columns(dattended.view()), columns(kProjections, 0),
        columns(kProjections, 1), columns(kProjections, 2), Columns(slots[kAttended].view()),
        slots[kLse], columns(kProjectionGradients, 0), columns(kProjectionGradients, 1),
        columns(kProjectionGradients, 2), scratch);
    dattended.reset();
    scratch.reset();
    slots[kLse].reset();
    for (std::size_t i = 0; i < inputs.size(); ++i) slots[kProjections + i].reset();
  }
  if (rope) {
    rope->turn(context, shape.seq,
               {columns(kProjectionGradients, 0), columns(kProjectionGradients, 1)}, true);
  }
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
  normed = context.enter(std::move(normed));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    slots[kUps + i] = context.allocate({shape.batch, shape.seq, inputs[i].out_here(context)});
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
  return input_gradient(context, inputs, std::span(slots).subspan(kUpGradients),
                        std::move(dnormed));
}

bool Mlp::trains_inputs(const BlockContext& context) const {
  bool any = false;
  for (const Linear& input : inputs) any = any || input.trains(context);
  return any;
}

}  // namespace zero3d
