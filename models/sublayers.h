// The two halves of a transformer block: causal attention and the MLP. All families use them:
// GPT-2 with one fused projection and GELU, LLaMA and its kin with three projections, rotary
// positions and a gated activation. They work on the slots of the block's saved tensors; the block
// owns the norms and the residual path around them.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/kernels/attention.h"
#include "zero3d/models/head_exchange.h"
#include "zero3d/models/layers.h"
#include "zero3d/models/rope.h"

namespace zero3d {

/// Positions in a transformer block's saved.tensors; those that a family does not have stay
/// undefined. The slots from kForwardSlots on are added by backward_inputs for backward_weights.
enum Slot : std::size_t {
  kInput,  ///< The block's input; the first norm and the residual path read it.
  kMean1,
  kRstd1,
  kProjections,                  ///< Three slots: q, k, v after rope, or all in the first: so
                                 ///< also where ranks share sequences.
  kUnnormed = kProjections + 3,  ///< Two slots: q and k before their norms, where they have some,
  kHeadRstd = kUnnormed + 2,     ///< and what those keep.
  kAttended = kHeadRstd + 2,
  kAttendedHeads,  ///< The same as attention gave it, where ranks share sequences.
  kLse,
  kMiddle,  ///< After attention and its residual sum.
  kMean2,
  kRstd2,
  kUps,  ///< Two slots: before the activation; gate and up, or GPT-2's c_fc.
  kForwardSlots = kUps + 2,
  kActivated = kForwardSlots,                  ///< After the activation, recomputed.
  kUpGradients,                                ///< Two slots.
  kOutputGradient = kUpGradients + 2,          ///< Of the MLP's output projection.
  kProjectionGradients,                        ///< Three slots.
  kMiddleGradient = kProjectionGradients + 3,  ///< Of the attention's output projection.
  kSlots
};

/// Of samples as parallel regions see them: whole, or where ranks share sequences, this rank's
/// part.
struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t rows() const { return batch * seq; }
};

/// A parallel region: forward takes `normed` as outside of it (BlockContext::enter) and gives what
/// leaves it, backward likewise.
struct Attention {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 0;
  Dropout probabilities;       ///< Of the attention probabilities.
  Dropout output_dropout;      ///< After the output projection.
  std::int64_t window = 0;     ///< Keys that a query sees; 0: all before it.
  std::vector<Linear> inputs;  ///< One fused [q, k, v], or three.
  std::vector<Norm> norms;     ///< Of each head of q and of k, before rope; or none.
  Linear output;
  std::shared_ptr<const Rope> rope;  ///< Null: positions are in the embedding.

  /// residual + dropout(output(attention(normed))). Consumes `normed`.
  Tensor forward(BlockContext& context, BatchShape shape, Tensor normed, const ConstView& residual,
                 std::vector<Tensor>& slots) const;
  /// From slots[kMiddleGradient], all rows of it: the gradient of `normed`.
  Tensor backward_inputs(BlockContext& context, BatchShape shape, std::vector<Tensor>& slots) const;
  bool trains(const BlockContext& context) const;

  // What lies between the projections, where a block works on those in tiles.

  /// slots[kAttended] from what `inputs` made (kProjections).
  void attend(BlockContext& context, BatchShape shape, std::vector<Tensor>& slots) const;
  /// kProjectionGradients from the gradient of slots[kAttended], which is kept.
  void attend_backward(BlockContext& context, BatchShape shape, Tensor dattended,
                       std::vector<Tensor>& slots) const;

 private:
  HeadsHere here(const BlockContext& context) const;
  HeadExchange exchange(const BlockContext& context) const {
    return {context, here(context), head_dim};
  }
  /// Elements of a row of what `inputs[index]` makes.
  std::int64_t width(const HeadsHere& part, std::size_t index) const;
  kernels::AttentionShape kernel_shape(BlockContext& context, const HeadsHere& part,
                                       BatchShape shape) const;
  /// The columns of q, k or v (0, 1, 2) in the three slots from `first` on.
  Columns part(const HeadsHere& part, const std::vector<Tensor>& slots, std::size_t first,
               int index) const;
  void attend_whole(BlockContext& context, BatchShape shape, std::vector<Tensor>& slots) const;
  void attend_whole_backward(BlockContext& context, BatchShape shape, Tensor dattended,
                             std::vector<Tensor>& slots) const;
  void norm_heads(BlockContext& context, std::vector<Tensor>& slots) const;
  /// The gradients of q and k (kProjectionGradients) become those before the norms.
  void norm_heads_backward(BlockContext& context, std::vector<Tensor>& slots) const;
};

/// A parallel region, as Attention.
struct Mlp {
  std::vector<Linear> inputs;  ///< One: GELU. Two: activation(first) * second.
  bool gelu_gate = false;      ///< GELU in the place of silu there.
  Linear output;
  Dropout output_dropout;

  bool gated() const { return inputs.size() == 2; }
  Tensor forward(BlockContext& context, BatchShape shape, Tensor normed, const ConstView& residual,
                 std::vector<Tensor>& slots) const;
  /// From slots[kOutputGradient], all rows of it: the gradient of `normed`; undefined when `wanted`
  /// is false.
  Tensor backward_inputs(BlockContext& context, std::vector<Tensor>& slots, bool wanted) const;
  bool trains_inputs(const BlockContext& context) const;

  /// The activation of kUps.
  Tensor activated(BlockContext& context, const std::vector<Tensor>& slots) const;
  /// kUpGradients from the gradient of activated().
  void activate_backward(BlockContext& context, Tensor dactivated,
                         std::vector<Tensor>& slots) const;

 private:
  /// y = activation(opening) * up.
  void gate(Stream& stream, const ConstColumns& opening, const ConstColumns& up,
            const View& y) const;
};

}  // namespace zero3d
