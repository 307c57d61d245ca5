#include "zero3d/engine/tiling.h"

namespace zero3d {

std::vector<Op> with_tiles(std::span<const Op> ops, std::span<const int> tiles) {
  std::vector<Op> result;
  for (Op op : ops) {
    const int count = uses_parameters(op.kind) ? tiles[static_cast<std::size_t>(op.block)] : 1;
    for (int i = 0; i < count; ++i) {
      op.tile = is_backward(op.kind) ? count - 1 - i : i;
      result.push_back(op);
    }
  }
  return result;
}

}  // namespace zero3d
