#include "zero3d/engine/checkpoint/checkpoint_buffers.h"

#include <algorithm>
#include <limits>

#include "zero3d/engine/checkpoint/rank_file.h"

namespace zero3d {
namespace {

std::int64_t load_buffers(const ZeroPlan& plan, const CheckpointUse& use) {
  return use.loads ? kLoadBuffers * bytes_of(load_buffer_elements(plan), DType::f32) : 0;
}

}  // namespace

std::int64_t load_buffer_elements(const ZeroPlan& plan) {
  std::int64_t largest = 0;
  for (const Unit& unit : plan.layout.units())
    if (!unit.frozen) largest = std::max(largest, unit.shard);
  return std::min(largest, tile_sizes(plan.optimizer.tile_elements).record);
}

std::int64_t checkpoint_buffers(const ZeroPlan& plan, const CheckpointUse& use,
                                std::int64_t file_bytes, std::int64_t room) {
  if (room < 0) room = std::numeric_limits<std::int64_t>::max();
  std::int64_t saves = 0;
  if (use.saves && file_bytes > 0) {
    if (use.asynchronously) saves = RankFile::buffer_bytes(room, file_bytes, true);
    if (saves == 0) saves = RankFile::buffer_bytes(room, file_bytes, false);
  }
  return std::max(saves, load_buffers(plan, use));
}

std::int64_t least_checkpoint_buffers(const ZeroPlan& plan, const CheckpointUse& use) {
  const std::int64_t saves = use.saves ? RankFile::buffer_bytes(0, RankFile::kMost, false) : 0;
  return std::max(saves, load_buffers(plan, use));
}

}  // namespace zero3d
