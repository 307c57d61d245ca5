// The first and the last block of a language model in tiles of the vocabulary: the token table's
// rows and the head's are cut alike, so that a tied table is one. The head makes the logits of one
// tile at a time and a cross-entropy of them as they come; backward makes them again. No tensor of
// [B*T, V] exists in training.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zero3d/kernels/vocabulary_part.h"
#include "zero3d/models/end_blocks.h"
#include "zero3d/models/tiled_linear.h"

namespace zero3d {

/// EmbeddingBlock and HeadBlock, or with more than one tile those below.
std::unique_ptr<Block> make_embedding_block(EmbeddingParts parts, int tiles);
std::unique_ptr<Block> make_head_block(HeadParts parts, int tiles);

/// A vocabulary of this size in tiles; none is empty.
std::vector<Extent> cut_vocabulary(std::int64_t vocabulary, int tiles);

/// Each tile writes the rows of its tokens; the bits are those of EmbeddingBlock.
class TiledEmbeddingBlock final : public Block {
 public:
  TiledEmbeddingBlock(EmbeddingParts parts, int tiles);

  std::string name() const override { return parts_.name; }
  std::vector<ParameterSpec> parameters() const override { return parts_.parameters.specs(); }
  Values forward(BlockContext& context, Values inputs, Saved& saved) override;
  Values backward_inputs(BlockContext& context, Values output_gradients, Saved& saved) override;
  void backward_weights(BlockContext& context, Saved& saved) override;

 private:
  bool is_last(const BlockContext& context) const {
    return context.tile() + 1 == static_cast<int>(tiles_.size());
  }

  kernels::VocabularyPart tile_part(const BlockContext& context) const;

  EmbeddingParts parts_;  ///< Its table is the first piece.
  std::vector<Extent> tiles_;
};

/// In generation: logits of the last position of each sequence, [B, V].
class TiledHeadBlock final : public Block {
 public:
  TiledHeadBlock(HeadParts parts, int tiles);

  std::string name() const override { return parts_.name; }
  std::vector<ParameterSpec> parameters() const override { return parts_.parameters.specs(); }
  Values forward(BlockContext& context, Values inputs, Saved& saved) override;
  Values backward_inputs(BlockContext& context, Values output_gradients, Saved& saved) override;
  /// Weight gradients are made from logits that are there in backward_inputs alone.
  void backward_weights(BlockContext& context, Saved& saved) override;

 private:
  bool is_last(const BlockContext& context) const {
    return context.tile() + 1 == static_cast<int>(tiles_.size());
  }
  const Extent& extent(const BlockContext& context) const {
    return tiles_[static_cast<std::size_t>(context.tile())];
  }
  kernels::VocabularyPart tile_part(const BlockContext& context) const;
  std::size_t weight(const BlockContext& context) const {
    return parts_.head.weight + static_cast<std::size_t>(context.tile());
  }
  Values logits_tile(BlockContext& context, Values inputs, std::vector<Tensor>& slots) const;
  Tensor logits(BlockContext& context, const ConstView& normed) const;
  Values finish_loss(BlockContext& context, std::vector<Tensor>& slots) const;

  HeadParts parts_;  ///< Its head is the first piece; the others follow it.
  std::vector<Extent> tiles_;
};

}  // namespace zero3d
