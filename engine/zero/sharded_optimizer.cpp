#include "zero3d/engine/zero/sharded_optimizer.h"

#include <algorithm>

#include "zero3d/engine/zero/tensor_norm_step.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d {

std::vector<Tile> plan_tiles(const ParamLayout& layout, std::int64_t tile_elements) {
  constexpr std::int64_t kStep = ParamLayout::kAlignment;
  std::vector<Tile> tiles;
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    if (layout.unit(unit).frozen) continue;
    const std::int64_t shard = layout.unit(unit).shard;
    const std::int64_t size = tile_elements <= 0 || tile_elements >= shard
                                  ? shard
                                  : (tile_elements + kStep - 1) / kStep * kStep;
    for (std::int64_t begin = 0; begin < shard; begin += size)
      tiles.push_back({unit, begin, std::min(size, shard - begin)});
  }
  return tiles;
}

ShardedOptimizer::ShardedOptimizer(Device& device, const ParamLayout& layout, const ModelPart& part,
                                   ParameterStore& parameters, const OptimizerSetup& setup,
                                   const ShardedOptimizerOptions& options, Stream& compute)
    : device_(device),
      layout_(layout),
      parameters_(parameters),
      setup_(setup),
      options_(options),
      compute_(compute),
      tiles_(plan_tiles(layout, options.tile_elements)) {
  std::vector<UnitStateShape> units;
  for (const Unit& unit : layout.units()) {
    UnitStateShape shape;
    shape.elements = unit.frozen ? 0 : unit.shard;
    shape.master = has_masters();
    shape.master_dtype = options.master_dtype;
    for (const StateSpec& state : setup.group(unit.group).rule->states()) {
      shape.states.push_back(
          {state.may_be_bf16 ? options.moment_dtype : DType::f32, state.initial});
    }
    units.push_back(std::move(shape));
  }
  states_ = make_device_state_store(device, compute, units);
  tensor_norms_ = std::make_unique<TensorNormStep>(device, layout, part, setup);
}

ShardedOptimizer::~ShardedOptimizer() = default;

void ShardedOptimizer::master_from_parameter(const Tile& tile) {
  const TileViews views = states_->fetch(compute_, tile);
  kernels::convert(compute_, parameters_.shard(tile.unit).flat(tile.begin, tile.count),
                   views.master);
  states_->commit(compute_, tile);
}

void ShardedOptimizer::initialise_masters() {
  if (!has_masters()) return;
  for (const Tile& tile : tiles_) master_from_parameter(tile);
}

void ShardedOptimizer::refresh_master(int index) {
  if (!has_masters()) return;
  const LayoutParameter& parameter = layout_.parameter(index);
  const std::int64_t shard = layout_.unit(parameter.unit).shard;
  const std::int64_t first = parameters_.shard_rank() * shard;  // of this rank's shard in the unit
  constexpr std::int64_t kStep = ParamLayout::kAlignment;
  const std::int64_t begin = std::max(parameter.offset, first);
  const std::int64_t end =
      std::min((parameter.offset + parameter.numel() + kStep - 1) / kStep * kStep, first + shard);
  if (begin < end) master_from_parameter({parameter.unit, begin - first, end - begin});
}

UpdateSlice ShardedOptimizer::fetch(Stream& stream, const Tile& tile, GradientReducer& gradients) {
  const View parameter = parameters_.shard(tile.unit).flat(tile.begin, tile.count);
  TileViews views = states_->fetch(stream, tile);
  UpdateSlice slice;
  slice.master = has_masters() ? views.master : parameter;
  slice.gradient = gradients.reduced(tile.unit).flat(tile.begin, tile.count);
  slice.states = std::move(views.states);
  if (has_masters()) slice.copy = parameter;
  return slice;
}

void ShardedOptimizer::step(GradientReducer& gradients, const std::vector<GroupSettings>& groups,
                            const StepContext& context) {
  if (tensor_norms_->needed()) tensor_norms_->run(compute_, gradients, *this, groups, context);
  for (std::size_t i = 0; i < tiles_.size(); ++i) {
    const Tile& tile = tiles_[i];
    const int group = layout_.unit(tile.unit).group;
    const UpdateRule& rule = *setup_.group(group).rule;
    if (rule.needs() != RuleNeeds::tensor_norms) {
      const UpdateSlice slice = fetch(compute_, tile, gradients);
      rule.update(compute_, groups[static_cast<std::size_t>(group)], context, {&slice, 1});
      commit(compute_, tile);
    }
    const bool unit_done = i + 1 == tiles_.size() || tiles_[i + 1].unit != tile.unit;
    if (unit_done) parameters_.publish(tile.unit);
  }
  parameters_.end_step();
}

}  // namespace zero3d
