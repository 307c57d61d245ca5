// The first and the last block of a language model: embedding, and final norm with the head and its
// cross-entropy.
#pragma once

#include <optional>
#include <string>

#include "zero3d/models/layers.h"

namespace zero3d {

struct EmbeddingParts {
  std::string name;
  ParameterList parameters;
  std::size_t table = 0;
  std::int64_t vocabulary = 0;           ///< Rows of the whole table.
  std::optional<std::size_t> positions;  ///< Rows bound the sequence.
  std::optional<std::int64_t> padding;   ///< A token whose row gets no gradient from here.
  float scale = 1.0f;  ///< Of the embeddings, rounded to the run's dtype first, as Gemma's is.
  Dropout dropout;

  /// The rows of the table of positions for those of [B, seq]; undefined where there is none.
  /// Throws Error(kInvalid) for samples longer than it.
  ConstView positions_of(const BlockContext& context, std::int64_t seq) const;
  /// Their gradient, where they train, from that of the sum of the tables.
  void positions_backward(BlockContext& context, const ConstView& dhidden) const;
  /// What follows the sum of the tables, in place or not.
  Tensor finish(BlockContext& context, Tensor hidden) const;
  /// The gradient of that sum.
  Tensor finish_backward(BlockContext& context, Tensor dhidden) const;

 private:
  void apply_scale(BlockContext& context, const View& x) const;
};

/// {tokens [B, T], rest...} -> {hidden [B, T, C], rest...}.
class EmbeddingBlock final : public Block {
 public:
  explicit EmbeddingBlock(EmbeddingParts parts) : parts_(std::move(parts)) {}

  std::string name() const override { return parts_.name; }
  std::vector<ParameterSpec> parameters() const override { return parts_.parameters.specs(); }
  Values forward(BlockContext& context, Values inputs, Saved& saved) override;
  Values backward_inputs(BlockContext& context, Values output_gradients, Saved& saved) override;
  void backward_weights(BlockContext& context, Saved& saved) override;

 private:
  EmbeddingParts parts_;
};

struct HeadParts {
  std::string name;
  ParameterList parameters;
  Norm norm;
  Linear head;
};

/// {hidden [B, T, C], targets [B, T]} -> {loss fp32 [2]}, or {logits [B*T, V]} without targets. The
/// logits are made once, in the run's dtype; backward turns them into their gradient in place.
class HeadBlock final : public Block {
 public:
  explicit HeadBlock(HeadParts parts) : parts_(std::move(parts)) {}

  std::string name() const override { return parts_.name; }
  std::vector<ParameterSpec> parameters() const override { return parts_.parameters.specs(); }
  Values forward(BlockContext& context, Values inputs, Saved& saved) override;
  Values backward_inputs(BlockContext& context, Values output_gradients, Saved& saved) override;
  void backward_weights(BlockContext& context, Saved& saved) override;

 private:
  HeadParts parts_;
};

}  // namespace zero3d
