#include "zero3d/models/tiled_end_blocks.h"

#include <algorithm>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/embedding.h"
#include "zero3d/kernels/gemm.h"
#include "zero3d/kernels/loss.h"

namespace zero3d {
namespace {

constexpr std::int64_t kClasses = 2048;  // whole blocks of the cross-entropy's sums

enum EmbeddingSlot : std::size_t { kTokens, kHidden, kHiddenGradient, kEmbeddingSlots };
enum HeadSlot : std::size_t {
  kHeadInput,
  kMean,
  kRstd,
  kNormed,  ///< While tiles follow each other, in forward and again in backward.
  kTargets,
  kState,  ///< Statistics of the cross-entropy so far.
  kLogSum,
  kLoss,            ///< A copy: backward divides by its count.
  kSeed,            ///< The gradient of the mean loss.
  kLogits,          ///< In generation.
  kNormedGradient,  ///< As tiles add to it: fp32.
  kHeadSlots
};

/// The parameters of `list` with the pieces of number `cut` along dim 0, one a tile, in its place.
/// `moved` are the other indices to keep true; `in_weights`: where their gradients are written.
ParameterList with_pieces(const ParameterList& list, std::size_t cut,
                          const std::vector<Extent>& tiles, const std::vector<std::size_t*>& moved,
                          bool in_weights) {
  ParameterList result;
  for (std::size_t i = 0; i < list.specs().size(); ++i) {
    ParameterSpec spec = list.specs()[i];
    if (i != cut) {
      result.add(std::move(spec));
      continue;
    }
    for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
      spec.piece = {0, tiles[tile].first, tiles[tile].count};
      spec.tile = static_cast<int>(tile);
      spec.gradient_in_weights = in_weights;
      result.add(spec);
    }
  }
  for (std::size_t* index : moved)
    if (*index > cut) *index += tiles.size() - 1;
  return result;
}

/// The last row of each sequence of x [B, T, C], as [B, 1, C].
Tensor last_positions(BlockContext& context, const Tensor& x) {
  const Shape& shape = x.shape();
  Tensor last = context.allocate({shape[0], 1, shape[2]});
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    const ConstView row = x.view().flat(((i + 1) * shape[1] - 1) * shape[2], shape[2]);
    context.stream().device().copy(context.stream(), last.view().flat(i * shape[2], shape[2]), row);
  }
  return last;
}

}  // namespace

std::vector<Extent> cut_vocabulary(std::int64_t vocabulary, int tiles) {
  std::vector<Extent> extents = cut_evenly(vocabulary, tiles, kClasses);
  std::erase_if(extents, [](const Extent& extent) { return extent.count == 0; });
  return extents;
}

std::unique_ptr<Block> make_embedding_block(EmbeddingParts parts, int tiles) {
  if (tiles <= 1) return std::make_unique<EmbeddingBlock>(std::move(parts));
  return std::make_unique<TiledEmbeddingBlock>(std::move(parts), tiles);
}

std::unique_ptr<Block> make_head_block(HeadParts parts, int tiles) {
  if (tiles <= 1) return std::make_unique<HeadBlock>(std::move(parts));
  return std::make_unique<TiledHeadBlock>(std::move(parts), tiles);
}

TiledEmbeddingBlock::TiledEmbeddingBlock(EmbeddingParts parts, int tiles)
    : parts_(std::move(parts)) {
  tiles_ = cut_vocabulary(parts_.vocabulary, tiles);
  std::vector<std::size_t*> moved;
  if (parts_.positions) moved.push_back(&*parts_.positions);
  parts_.parameters = with_pieces(parts_.parameters, parts_.table, tiles_, moved, true);
}

kernels::VocabularyPart TiledEmbeddingBlock::tile_part(const BlockContext& context) const {
  const Extent& tile = tiles_[static_cast<std::size_t>(context.tile())];
  return {tile.first, tile.count, parts_.vocabulary};
}

Values TiledEmbeddingBlock::forward(BlockContext& context, Values inputs, Saved& saved) {
  std::vector<Tensor>& slots = saved.tensors;
  const auto tile = static_cast<std::size_t>(context.tile());
  const ConstView table = context.parameter(parts_.table + tile);
  if (tile == 0) {
    slots.resize(kEmbeddingSlots);
    slots[kTokens] = std::move(inputs[0]);
    const Shape& tokens = slots[kTokens].shape();
    slots[kHidden] = context.allocate({tokens[0], tokens[1], table.shape()[1]});
  }
  const ConstView positions = parts_.positions_of(context, slots[kTokens].shape()[1]);
  kernels::embedding_forward(context.stream(), slots[kTokens], table, positions, slots[kHidden],
                             tile_part(context), kernels::OtherTokens::keep);
  if (!is_last(context)) return inputs;
  inputs[0] = parts_.finish(context, std::move(slots[kHidden]));
  if (!context.saves()) slots[kTokens].reset();
  return inputs;
}

Values TiledEmbeddingBlock::backward_inputs(BlockContext& context, Values output_gradients,
                                            Saved& saved) {
  if (is_last(context))
    saved.tensors[kHiddenGradient] =
        parts_.finish_backward(context, std::move(output_gradients[0]));
  return output_gradients;
}

void TiledEmbeddingBlock::backward_weights(BlockContext& context, Saved& saved) {
  const ConstView dhidden = saved.tensors[kHiddenGradient];
  const auto tile = static_cast<std::size_t>(context.tile());
  const std::size_t table = parts_.table + tile;
  if (context.trains(table))
    kernels::embedding_backward(context.stream(), saved.tensors[kTokens], dhidden,
                                context.write_gradient(table), context.accumulate_gradient(table),
                                parts_.padding.value_or(-1), tile_part(context));
  if (tile == 0) parts_.positions_backward(context, dhidden);
}

TiledHeadBlock::TiledHeadBlock(HeadParts parts, int tiles) : parts_(std::move(parts)) {
  tiles_ = cut_vocabulary(parts_.head.out, tiles);
  std::vector<std::size_t*> moved = {&parts_.norm.weight};
  if (parts_.norm.bias) moved.push_back(&*parts_.norm.bias);
  parts_.parameters = with_pieces(parts_.parameters, parts_.head.weight, tiles_, moved, false);
}

kernels::VocabularyPart TiledHeadBlock::tile_part(const BlockContext& context) const {
  return {extent(context).first, extent(context).count, parts_.head.out};
}

Tensor TiledHeadBlock::logits(BlockContext& context, const ConstView& normed) const {
  Tensor y = context.allocate({normed.shape().rows(), extent(context).count});
  kernels::Gemm product;
  product.a = normed;
  product.b = context.parameter(weight(context));
  product.trans_b = kernels::Transpose::yes;
  product.c = y;
  product.what = "logits, a tile";
  kernels::gemm(context.stream(), product);
  return y;
}

Values TiledHeadBlock::forward(BlockContext& context, Values inputs, Saved& saved) {
  std::vector<Tensor>& slots = saved.tensors;
  if (context.tile() == 0) {
    slots.resize(kHeadSlots);
    slots[kHeadInput] = std::move(inputs[0]);
    if (inputs.size() > 1) slots[kTargets] = std::move(inputs[1]);
    const bool scores = slots[kTargets].defined();
    if (!scores) slots[kHeadInput] = last_positions(context, slots[kHeadInput]);
    const std::int64_t rows = slots[kHeadInput].shape().rows();
    if (context.saves() && scores) {
      if (parts_.norm.has_mean()) slots[kMean] = context.allocate(DType::f32, {rows});
      slots[kRstd] = context.allocate(DType::f32, {rows});
    }
    slots[kNormed] = context.allocate(slots[kHeadInput].shape());
    parts_.norm.forward(context, slots[kHeadInput], slots[kNormed], slots[kMean], slots[kRstd]);
    if (!context.saves() || !scores) slots[kHeadInput].reset();
    if (scores) slots[kState] = context.allocate(DType::f32, {3, rows});
    inputs.resize(1);  // there are values between tiles, though none is used
  }
  if (!slots[kTargets].defined()) return logits_tile(context, std::move(inputs), slots);
  {
    const Tensor tile = logits(context, slots[kNormed]);
    kernels::cross_entropy_statistics(
        context.stream(), tile, slots[kTargets], tile_part(context), slots[kState],
        context.tile() == 0 ? kernels::Statistics::begin : kernels::Statistics::go_on);
  }
  return is_last(context) ? finish_loss(context, slots) : std::move(inputs);
}

/// In generation: a tile's columns of the logits.
Values TiledHeadBlock::logits_tile(BlockContext& context, Values inputs,
                                   std::vector<Tensor>& slots) const {
  const std::int64_t rows = slots[kNormed].shape().rows();
  if (context.tile() == 0) slots[kLogits] = context.allocate({rows, parts_.head.out});
  kernels::Gemm product;
  product.a = slots[kNormed];
  product.b = context.parameter(weight(context));
  product.trans_b = kernels::Transpose::yes;
  product.c = slots[kLogits];
  product.c_columns = {extent(context).first, extent(context).count};
  product.what = "logits, a tile";
  kernels::gemm(context.stream(), product);
  if (is_last(context)) {
    slots[kNormed].reset();
    inputs[0] = std::move(slots[kLogits]);
  }
  return inputs;
}

Values TiledHeadBlock::finish_loss(BlockContext& context, std::vector<Tensor>& slots) const {
  slots[kNormed].reset();
  slots[kLogSum] = context.allocate(DType::f32, {slots[kTargets].numel()});
  Tensor loss = context.allocate(DType::f32, {2});
  kernels::cross_entropy_join(context.stream(), slots[kState], slots[kTargets], slots[kLogSum],
                              loss);
  context.sp().sum(context.stream(), loss);
  slots[kState].reset();
  if (context.saves()) {
    slots[kLoss] = context.allocate(DType::f32, {2});
    context.stream().device().copy(context.stream(), slots[kLoss], loss);
  }
  Values outputs;
  outputs.push_back(std::move(loss));
  return outputs;
}

Values TiledHeadBlock::backward_inputs(BlockContext& context, Values output_gradients,
                                       Saved& saved) {
  std::vector<Tensor>& slots = saved.tensors;
  const Norm& norm = parts_.norm;
  const bool wants_normed = context.wants_input_gradient() || norm.trains(context);
  const std::size_t piece = weight(context);
  if (is_last(context)) {
    slots[kSeed] = std::move(output_gradients[0]);
    output_gradients.clear();
    output_gradients.resize(2);  // one for hidden, none for targets
    slots[kNormed] = context.allocate(slots[kHeadInput].shape());
    norm.forward(context, slots[kHeadInput], slots[kNormed], {}, {});
    if (wants_normed)
      slots[kNormedGradient] = context.allocate(DType::f32, slots[kHeadInput].shape());
  }
  if (wants_normed || context.trains(piece)) {
    const Tensor dlogits = logits(context, slots[kNormed]);
    kernels::cross_entropy_backward(context.stream(), dlogits, slots[kTargets], slots[kLogSum],
                                    slots[kLoss], slots[kSeed], tile_part(context));
    kernels::Gemm product;
    product.a = dlogits;
    if (wants_normed) {
      product.b = context.parameter(piece);
      product.c = slots[kNormedGradient];
      product.accumulate = !is_last(context);
      product.what = "head input gradient, a tile";
      kernels::gemm(context.stream(), product);
    }
    if (context.trains(piece)) {
      product.trans_a = kernels::Transpose::yes;
      product.b = slots[kNormed];
      product.c = context.write_gradient(piece);
      product.accumulate = false;
      product.what = "head weight gradient, a tile";
      kernels::gemm(context.stream(), product);
    }
  }
  if (context.tile() > 0) return output_gradients;
  slots[kNormed].reset();
  if (wants_normed) {
    const Tensor dnormed = rounded_sum(context, std::move(slots[kNormedGradient]));
    norm.backward_weight(context, dnormed, slots[kHeadInput], slots[kMean], slots[kRstd]);
    if (context.wants_input_gradient()) {
      output_gradients[0] = context.allocate(dnormed.shape());
      norm.backward_input(context, dnormed, slots[kHeadInput], slots[kMean], slots[kRstd], {},
                          output_gradients[0]);
    }
  }
  slots.clear();
  return output_gradients;
}

void TiledHeadBlock::backward_weights(BlockContext&, Saved&) {}

}  // namespace zero3d
