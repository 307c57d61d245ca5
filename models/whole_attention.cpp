// Attention where ranks share sequences: its rows of all heads go over to some heads of whole
// samples, and what those attend to comes back; gradients likewise.
#include <utility>

#include "zero3d/models/sublayers.h"

namespace zero3d {

void Attention::attend_whole(BlockContext& context, BatchShape shape,
                             std::vector<Tensor>& slots) const {
  const HeadsHere heads_here = here(context);
  const HeadExchange ranks = exchange(context);
  const auto columns = [&](int index) { return part(heads_here, slots, kProjections, index); };
  Tensor projected = ranks.gather_rows(shape.batch, columns(0), columns(1), columns(2));
  for (std::size_t i = 0; i < inputs.size(); ++i) slots[kProjections + i].reset();

  const std::int64_t q = ranks.width(0), kv = ranks.width(1);
  const kernels::AttentionShape kernel = kernel_shape(context, ranks.mine(), shape);
  Tensor attended = context.allocate({shape.batch, kernel.seq, q});
  slots[kLse] = context.allocate(DType::f32, {shape.batch, kernel.heads, kernel.seq});
  kernels::attention_forward(
      context.stream(), kernel, Columns(projected.view(), 0, q), Columns(projected.view(), q, kv),
      Columns(projected.view(), q + kv, kv), Columns(attended.view()), slots[kLse]);
  slots[kAttended] = context.allocate({shape.batch, shape.seq, heads_here.heads * head_dim});
  const Columns target(slots[kAttended].view());
  if (!context.saves()) {
    projected.reset();
    slots[kLse].reset();
    return ranks.scatter_rows(attended, target);
  }
  slots[kProjections] = std::move(projected);
  slots[kAttendedHeads] = std::move(attended);
  ranks.scatter_rows(slots[kAttendedHeads], target);
}

void Attention::attend_whole_backward(BlockContext& context, BatchShape shape, Tensor dattended,
                                      std::vector<Tensor>& slots) const {
  const HeadsHere heads_here = here(context);
  const HeadExchange ranks = exchange(context);
  Tensor dwhole = ranks.gather_rows(shape.batch, Columns(dattended.view()));
  dattended.reset();

  const std::int64_t q = ranks.width(0), kv = ranks.width(1);
  const auto columns = [&](const Tensor& all, int index) {
    return Columns(all.view(), index == 0 ? 0 : q + (index - 1) * kv, index == 0 ? q : kv);
  };
  const kernels::AttentionShape kernel = kernel_shape(context, ranks.mine(), shape);
  Tensor gradients = context.allocate(slots[kProjections].shape());
  Tensor scratch = context.allocate(DType::f32, {kernels::attention_backward_scratch(kernel)},
                                    Category::workspace);
  kernels::attention_backward(
      context.stream(), kernel, Columns(dwhole.view()), columns(slots[kProjections], 0),
      columns(slots[kProjections], 1), columns(slots[kProjections], 2),
      Columns(slots[kAttendedHeads].view()), slots[kLse], columns(gradients, 0),
      columns(gradients, 1), columns(gradients, 2), scratch);
  dwhole.reset();
  scratch.reset();
  for (const std::size_t slot : {kLse, kAttendedHeads, kProjections}) slots[slot].reset();

  for (std::size_t i = 0; i < inputs.size(); ++i)
    slots[kProjectionGradients + i] =
        context.allocate({shape.batch, shape.seq, width(heads_here, i)});
  const auto here_of = [&](int index) {
    return part(heads_here, slots, kProjectionGradients, index);
  };
  ranks.scatter_rows(gradients, here_of(0), here_of(1), here_of(2));
}

}  // namespace zero3d
