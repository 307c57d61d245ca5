// The list of operations with blocks in tiles: each operation of a cut block becomes one a tile. A
// pure function; schedules and recomputation are made of whole blocks, before it.
#pragma once

#include <span>
#include <vector>

#include "zero3d/engine/schedule.h"

namespace zero3d {

/// `tiles[block]`: how many it has. Forward and recompute go up, backward goes down.
std::vector<Op> with_tiles(std::span<const Op> ops, std::span<const int> tiles);

}  // namespace zero3d
