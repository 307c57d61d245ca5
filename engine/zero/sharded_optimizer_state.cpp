// The optimizer's state outside of steps: its first values, and access to it.
#include <algorithm>

#include "zero3d/engine/zero/sharded_optimizer.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d {

void ShardedOptimizer::walk(std::span<const Tile> tiles,
                            const std::function<void(const Tile&, const View&, Stream&)>& visit,
                            bool changes) {
  drop_ahead();
  const auto walks = this->walks(tiles, compute_, nullptr);
  for (const Tile& tile : tiles) {
    LaneWalk& walk = *walks[lane_of(tile.unit)];
    walk.open();
    visit(tile, walk.states(), *lane(tile.unit).stream);
    walk.close(changes);
  }
}

void ShardedOptimizer::initialise() {
  walk(tiles_, [this](const Tile& tile, const View& bytes, Stream& stream) {
    const std::vector<RecordPart>& parts = records_[static_cast<std::size_t>(tile.unit)].parts();
    const std::vector<StateSlice> all = slices(tile, bytes);
    device_.fill_zero(stream, bytes);
    for (const StateSlice& slice : all) {
      for (std::size_t i = 0; i < slice.states.size(); ++i) {
        const float value = parts[i + (slice.master.defined() ? 1 : 0)].initial;
        if (value != 0) kernels::fill(stream, slice.states[i], value);
      }
    }
    masters_from_parameters(tile, all, stream);
  });
}

/// `slices` of the tile, ascending.
void ShardedOptimizer::masters_from_parameters(const Tile& tile, std::span<const StateSlice> slices,
                                               Stream& stream) {
  if (!options_.has_master(tile.unit)) return;
  ParameterPieces* const pieces = lane(tile.unit).pieces.get();
  for (const StateSlice& slice : slices) {
    const View values = pieces == nullptr
                            ? parameters_.shard(slice.unit).flat(slice.begin, slice.count)
                            : pieces->fetch(stream, slice.unit, slice.begin, slice.count);
    kernels::convert(stream, values, slice.master);
    if (pieces != nullptr) pieces->done(stream);
  }
}

IoCounters ShardedOptimizer::counters() const {
  return lanes_[1].store ? lanes_[1].store->counters() : IoCounters{};
}

void ShardedOptimizer::for_each_slice(
    const std::function<void(const StateSlice&, Stream&)>& visit) {
  if (delayed_ != nullptr) delayed_->bring_home();
  walk(tiles_, [&](const Tile& tile, const View& bytes, Stream& stream) {
    for (const StateSlice& slice : parameter_slices(tile, bytes)) visit(slice, stream);
  });
  if (delayed_ != nullptr) delayed_->take_again();
}

void ShardedOptimizer::for_each_tile(
    bool changes, const std::function<bool(int unit)>& wanted,
    const std::function<void(const Tile&, std::span<const StateSlice>, Stream&)>& visit) {
  std::vector<Tile> tiles = tiles_;
  std::erase_if(tiles, [&](const Tile& tile) { return !wanted(tile.unit); });
  walk(
      tiles,
      [&](const Tile& tile, const View& bytes, Stream& stream) {
        visit(tile, parameter_slices(tile, bytes), stream);
      },
      changes);
}

std::int64_t ShardedOptimizer::snapshot_bytes(const Tile& tile) const {
  const RecordLayout& records = records_[static_cast<std::size_t>(tile.unit)];
  return records.offset(tile.begin + tile.count) - records.offset(tile.begin);
}

void ShardedOptimizer::refresh_master(int parameter) {
  const int unit = layout_.parameter(parameter).unit;
  if (!options_.has_master(unit)) return;
  std::vector<Tile> tiles = tiles_;
  std::erase_if(tiles, [&](const Tile& tile) { return tile.unit != unit; });
  if (delayed_ != nullptr) delayed_->bring_home();
  walk(tiles, [&](const Tile& tile, const View& bytes, Stream& stream) {
    std::vector<StateSlice> slices = parameter_slices(tile, bytes);
    std::erase_if(slices, [&](const StateSlice& slice) { return slice.parameter != parameter; });
    masters_from_parameters(tile, slices, stream);
  });
  if (delayed_ != nullptr) delayed_->take_again();
}

void ShardedOptimizer::move_states(Tier tier) {
  drop_ahead();
  for (UpdateLane& lane : lanes_)
    if (lane.store) lane.store->move_to(compute_, tier);
  if (delayed_ != nullptr) delayed_->move_states(tier);
}

}  // namespace zero3d
