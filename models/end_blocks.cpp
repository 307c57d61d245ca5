// Embedding and head: their order of work.
#include "zero3d/models/end_blocks.h"

#include <utility>

#include "zero3d/core/half.h"
#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/embedding.h"
#include "zero3d/kernels/loss.h"

namespace zero3d {
namespace {

enum EmbeddingSlot : std::size_t { kTokens, kHiddenGradient };
enum HeadSlot : std::size_t {
  kHidden,
  kMean,
  kRstd,
  kLogits,
  kTargets,
  kLogSum,
  kLoss,
  kHeadSlots
};

/// Which part of the vocabulary a rank holds that stores `stored` entries of it.
kernels::VocabularyPart part_of(const BlockContext& context, std::int64_t stored,
                                std::int64_t vocabulary) {
  return kernels::VocabularyPart::of_rank(context.tp().rank(), stored, vocabulary);
}

/// Loss and what backward needs of it, from this rank's columns of the logits.
void take_loss(BlockContext& context, const ConstView& logits, const ConstView& targets,
               std::int64_t vocabulary, const View& log_sum, const View& loss) {
  const int ranks = context.tp().size();
  if (context.tp().alone())
    return kernels::cross_entropy_forward(context.stream(), logits, targets, log_sum, loss);
  const std::int64_t rows = logits.shape()[0];
  Tensor mine = context.allocate(DType::f32, {3, rows});
  const Tensor all = context.allocate(DType::f32, {ranks, 3, rows});
  kernels::cross_entropy_statistics(context.stream(), logits, targets,
                                    part_of(context, logits.shape()[1], vocabulary), mine);
  context.tp().all_gather(context.stream(), mine, all);
  context.read_by_others(mine);
  kernels::cross_entropy_join(context.stream(), all, targets, log_sum, loss);
}

/// All columns of the logits, from each rank's.
Tensor join_columns(BlockContext& context, Tensor logits, std::int64_t vocabulary) {
  if (context.tp().alone()) return logits;
  const std::int64_t rows = logits.shape()[0], stored = logits.shape()[1];
  const Tensor all = context.allocate({context.tp().size() * rows, stored});
  context.tp().all_gather(context.stream(), logits, all);
  context.read_by_others(logits);
  logits.reset();
  Tensor joined = context.allocate({rows, vocabulary});
  for (int rank = 0; rank < context.tp().size(); ++rank) {
    const auto part = kernels::VocabularyPart::of_rank(rank, stored, vocabulary);
    const View of_rank = all.view().flat(rank * rows * stored, rows * stored);
    if (part.count == 0) continue;
    kernels::copy_columns(context.stream(),
                          Columns(of_rank.reshaped({rows, stored}), 0, part.count),
                          Columns(joined.view(), part.first, part.count));
  }
  return joined;
}

}  // namespace

Values EmbeddingBlock::forward(BlockContext& context, Values inputs, Saved& saved) {
  Tensor tokens = std::move(inputs[0]);
  const std::int64_t seq = tokens.shape()[1];
  const ConstView table = context.parameter(parts_.table);
  const ConstView positions = parts_.positions_of(context, seq);
  Tensor hidden = context.allocate({tokens.shape()[0], seq, table.shape()[1]});
  kernels::embedding_forward(context.stream(), tokens, table, positions, hidden,
                             part_of(context, table.shape()[0], parts_.vocabulary));
  inputs[0] = parts_.finish(context, context.leave(std::move(hidden)));
  if (context.saves()) saved.tensors.push_back(std::move(tokens));
  return inputs;
}

ConstView EmbeddingParts::positions_of(const BlockContext& context, std::int64_t seq) const {
  if (!positions) return {};
  const ConstView rows = context.parameter(*positions);
  const std::int64_t length = context.sp().whole(seq), width = rows.shape()[1];
  if (length > rows.shape()[0])
    throw_invalid(concat("a sequence of ", length, " tokens does not fit the model's ",
                         rows.shape()[0], " positions (n_positions in config.json)"));
  return rows.flat(context.sp().first() * width, seq * width).reshaped({seq, width});
}

void EmbeddingParts::positions_backward(BlockContext& context, const ConstView& dhidden) const {
  if (!positions || !context.trains(*positions)) return;
  const View gradient = context.write_gradient(*positions);
  const bool accumulate = context.accumulate_gradient(*positions);
  // Rows of other ranks' parts get nothing from here.
  const std::int64_t width = gradient.shape()[1], before = context.sp().first();
  const std::int64_t rows = gradient.shape()[0] - before;
  if (before > 0 && !accumulate)
    context.stream().device().fill_zero(context.stream(), gradient.flat(0, before * width));
  kernels::position_backward(context.stream(), dhidden, dhidden.shape()[1],
                             gradient.flat(before * width, rows * width).reshaped({rows, width}),
                             accumulate);
}

Tensor EmbeddingParts::finish(BlockContext& context, Tensor hidden) const {
  apply_scale(context, hidden);
  if (!dropout.active(context)) return hidden;
  Tensor dropped = context.allocate(hidden.shape());
  dropout.apply(context, hidden, {}, dropped);
  return dropped;
}

Tensor EmbeddingParts::finish_backward(BlockContext& context, Tensor dhidden) const {
  if (dropout.active(context)) {
    Tensor dropped = context.allocate(dhidden.shape());
    dropout.apply(context, dhidden, {}, dropped);
    dhidden = std::move(dropped);
  }
  apply_scale(context, dhidden);
  return dhidden;
}

void EmbeddingParts::apply_scale(BlockContext& context, const View& x) const {
  if (scale == 1.0f) return;
  float factor = scale;
  if (context.dtype() == DType::bf16) factor = to_float(to_bf16(factor));
  if (context.dtype() == DType::f16) factor = to_float(to_f16(factor));
  kernels::scale(context.stream(), x, factor);
}

Values EmbeddingBlock::backward_inputs(BlockContext& context, Values output_gradients,
                                       Saved& saved) {
  Tensor dhidden = parts_.finish_backward(context, std::move(output_gradients[0]));
  dhidden = context.enter(std::move(dhidden));
  output_gradients[0].reset();
  saved.tensors.resize(kHiddenGradient);
  saved.tensors.push_back(std::move(dhidden));
  return output_gradients;
}

void EmbeddingBlock::backward_weights(BlockContext& context, Saved& saved) {
  const ConstView dhidden = saved.tensors[kHiddenGradient];
  if (context.trains(parts_.table)) {
    const View dtable = context.write_gradient(parts_.table);
    kernels::embedding_backward(context.stream(), saved.tensors[kTokens], dhidden, dtable,
                                context.accumulate_gradient(parts_.table),
                                parts_.padding.value_or(-1),
                                part_of(context, dtable.shape()[0], parts_.vocabulary));
  }
  parts_.positions_backward(context, dhidden);
  saved.tensors.clear();
}

Values HeadBlock::forward(BlockContext& context, Values inputs, Saved& saved) {
  Tensor hidden = std::move(inputs[0]);
  Tensor targets = inputs.size() > 1 ? std::move(inputs[1]) : Tensor();
  inputs.clear();
  const bool saves = context.saves() && targets.defined();

  Tensor mean, rstd;
  if (saves) {
    const Shape statistics{hidden.shape().rows()};
    if (parts_.norm.has_mean()) mean = context.allocate(DType::f32, statistics);
    rstd = context.allocate(DType::f32, statistics);
  }
  Tensor normed = context.allocate(hidden.shape());
  parts_.norm.forward(context, hidden, normed, mean, rstd);
  if (!saves) hidden.reset();
  normed = context.enter(std::move(normed));
  const std::int64_t rows = normed.shape().rows();
  Tensor logits = context.allocate({rows, parts_.head.out_here(context)});
  parts_.head.forward(context, normed, logits);
  normed.reset();
  if (!targets.defined()) {
    inputs.push_back(join_columns(context, std::move(logits), parts_.head.out));
    return inputs;
  }

  Tensor log_sum = context.allocate(DType::f32, {rows});
  Tensor loss = context.allocate(DType::f32, {2});
  take_loss(context, logits, targets, parts_.head.out, log_sum, loss);
  context.sp().sum(context.stream(), loss);
  if (saves) {
    Tensor kept = context.allocate(DType::f32, {2});  // backward divides by its count
    context.stream().device().copy(context.stream(), kept, loss);
    saved.tensors.resize(kHeadSlots);
    saved.tensors[kHidden] = std::move(hidden);
    saved.tensors[kMean] = std::move(mean);
    saved.tensors[kRstd] = std::move(rstd);
    saved.tensors[kLogits] = std::move(logits);
    saved.tensors[kTargets] = std::move(targets);
    saved.tensors[kLogSum] = std::move(log_sum);
    saved.tensors[kLoss] = std::move(kept);
  }
  inputs.push_back(std::move(loss));
  return inputs;
}

Values HeadBlock::backward_inputs(BlockContext& context, Values output_gradients, Saved& saved) {
  std::vector<Tensor>& slots = saved.tensors;
  kernels::cross_entropy_backward(context.stream(), slots[kLogits], slots[kTargets], slots[kLogSum],
                                  slots[kLoss], output_gradients[0],
                                  part_of(context, slots[kLogits].shape()[1], parts_.head.out));
  output_gradients.clear();
  output_gradients.resize(2);  // one for hidden, none for targets
  slots[kTargets].reset();
  slots[kLogSum].reset();
  slots[kLoss].reset();

  const ConstView dlogits = slots[kLogits];
  parts_.head.backward_bias(context, dlogits);
  const bool trains_weight = parts_.head.trains_weight(context);
  if (context.wants_input_gradient() || parts_.norm.trains(context)) {
    Tensor dnormed = context.allocate(context.shape_inside(slots[kHidden].shape()));
    dnormed = context.leave(std::move(dnormed), [&](std::int64_t first, const View& rows) {
      const std::int64_t count = rows.shape()[0], width = dlogits.shape()[1];
      parts_.head.backward_input(
          context, dlogits.flat(first * width, count * width).reshaped({count, width}), rows);
    });
    if (!trains_weight) slots[kLogits].reset();
    parts_.norm.backward_weight(context, dnormed, slots[kHidden], slots[kMean], slots[kRstd]);
    if (context.wants_input_gradient()) {
      output_gradients[0] = context.allocate(dnormed.shape());
      parts_.norm.backward_input(context, dnormed, slots[kHidden], slots[kMean], slots[kRstd], {},
                                 output_gradients[0]);
    }
  }
  slots[kMean].reset();
  slots[kRstd].reset();
  return output_gradients;
}

void HeadBlock::backward_weights(BlockContext& context, Saved& saved) {
  std::vector<Tensor>& slots = saved.tensors;
  if (parts_.head.trains_weight(context)) {
    Tensor normed = context.allocate(slots[kHidden].shape());
    parts_.norm.forward(context, slots[kHidden], normed, {}, {});
    slots[kHidden].reset();
    normed = context.enter(std::move(normed));
    parts_.head.backward_weight(context, normed, slots[kLogits]);
  }
  slots.clear();
}

}  // namespace zero3d
