// A linear layer in tiles of its outputs (ZeRO-Infinity's memory-centric tiling): each tile has its
// rows of the weight and of the bias as pieces of their own, and writes its columns of y. Outputs
// and weight gradients are sums as in the whole layer; the gradient of x is a sum over tiles, from
// the last to the first, in fp32.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "zero3d/models/layers.h"

namespace zero3d {

/// Positions [first, first + count) of something cut.
struct Extent {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// `extent` in `pieces` of nearly equal size that begin at multiples of `granule`; of 1 where that
/// leaves pieces empty. With more pieces than positions the first ones are empty.
std::vector<Extent> cut_evenly(std::int64_t extent, int pieces, std::int64_t granule);

/// A sum over tiles, which is in fp32, in the run's dtype.
Tensor rounded_sum(BlockContext& context, Tensor sum);

class TiledLinear {
 public:
  /// Declares the pieces of `linear`, which refers to `whole`, in `parameters`: piece k for tile
  /// `first_tile` + k. `linear` then refers to the last of them, which tells what all train.
  TiledLinear(Linear& linear, const ParameterList& whole, int tiles, int first_tile,
              ParameterList& parameters);

  /// Column block `tile` of y [rows, out].
  void forward(BlockContext& context, int tile, const ConstView& x, const View& y) const;
  /// Adds to dx; writes it where `begins`.
  void backward_input(BlockContext& context, int tile, const ConstView& dy, const View& dx,
                      bool begins) const;
  void backward_bias(BlockContext& context, int tile, const ConstView& dy) const;
  void backward_weight(BlockContext& context, int tile, const ConstView& x,
                       const ConstView& dy) const;

 private:
  struct Tile {
    Extent outputs;
    std::size_t weight = 0;
    std::optional<std::size_t> bias;
  };
  bool empty(int tile) const { return at(tile).outputs.count == 0; }
  const Tile& at(int tile) const { return tiles_[static_cast<std::size_t>(tile)]; }

  bool input_major_ = false;
  std::vector<Tile> tiles_;
};

}  // namespace zero3d
