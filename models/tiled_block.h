// A transformer block with its linear layers in tiles: 4 n of them, first those of the attention's
// input projections, then of its output, of the MLP's inputs and of its output. Between the first
// and the last tile of a layer its whole input and output are there; of the parameters, one tile's
// (and the norms').
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zero3d/models/tiled_linear.h"
#include "zero3d/models/transformer_block.h"

namespace zero3d {

/// TransformerBlock, or with more than one tile this one.
std::unique_ptr<Block> make_transformer_block(TransformerParts parts, int tiles);

/// Values and results of TransformerBlock; gradients of the inputs of linear layers are summed
/// over tiles.
class TiledTransformerBlock final : public Block {
 public:
  TiledTransformerBlock(TransformerParts parts, int tiles);

  std::string name() const override { return parts_.name; }
  std::vector<ParameterSpec> parameters() const override { return parts_.parameters.specs(); }
  Values forward(BlockContext& context, Values inputs, Saved& saved) override;
  Values backward_inputs(BlockContext& context, Values output_gradients, Saved& saved) override;
  void backward_weights(BlockContext& context, Saved& saved) override;

 private:
  using Slots = std::vector<Tensor>;
  enum Layer { kAttentionInputs, kAttentionOutput, kMlpInputs, kMlpOutput, kLayers };

  /// Which tile of which layer runs.
  struct Place {
    Layer layer;
    int tile;
    bool first, last;  ///< Tile of its layer.
  };
  Place place(const BlockContext& context) const;
  const std::vector<TiledLinear>& linears(Layer layer) const {
    return linears_[static_cast<std::size_t>(layer)];
  }

  void project(BlockContext& context, const Place& place, Slots& slots) const;
  void add_output(BlockContext& context, const Place& place, Slots& slots) const;
  void output_backward(BlockContext& context, const Place& place, Slots& slots) const;
  void project_backward(BlockContext& context, const Place& place, Slots& slots, bool wanted) const;
  bool trains_attention(const BlockContext& context) const;

  int tiles_;
  TransformerParts parts_;  ///< Its linears name pieces: their sizes and whether they train hold.
  std::vector<TiledLinear> linears_[kLayers];
};

}  // namespace zero3d
