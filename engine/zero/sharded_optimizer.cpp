#include "zero3d/engine/zero/sharded_optimizer.h"

#include <algorithm>

#include "zero3d/kernels/elementwise.h"
#include "zero3d/offload/tile_window.h"

namespace zero3d {
namespace {

std::vector<RuleNeeds> needs_of(const OptimizerSetup& setup) {
  std::vector<RuleNeeds> needs;
  for (int group = 0; group < setup.group_count(); ++group)
    needs.push_back(setup.rule(group).needs());
  return needs;
}

}  // namespace

std::vector<RecordLayout> plan_records(const ParamLayout& layout, const OptimizerSetup& setup,
                                       const ShardedOptimizerOptions& options) {
  const std::int64_t record = tile_sizes(options.tile_elements).record;
  std::vector<RecordLayout> records;
  for (const Unit& unit : layout.units()) {
    if (unit.frozen) {
      records.emplace_back();
      continue;
    }
    const UpdateRule& rule = setup.rule(unit.group);
    std::vector<RecordPart> parts;
    if (options.has_masters()) parts.push_back({options.master_dtype});
    for (const StateSpec& state : rule.states())
      parts.push_back({state.may_be_bf16 ? options.moment_dtype : DType::f32, state.initial});
    if (rule.needs() == RuleNeeds::tensor_norms) parts.push_back({DType::f32});
    records.emplace_back(unit.shard, record, std::move(parts));
  }
  return records;
}

ShardedOptimizer::ShardedOptimizer(Device& device, const ParamLayout& layout, const ModelPart& part,
                                   ZeroGroups& groups, ParameterStore& parameters,
                                   const OptimizerSetup& setup,
                                   const ShardedOptimizerOptions& options,
                                   const RankStreams& streams)
    : device_(device),
      layout_(layout),
      parameters_(parameters),
      setup_(setup),
      options_(options),
      compute_(*streams.compute),
      reduce_(*streams.reduce),
      records_(plan_records(layout, setup, options)),
      tiles_(plan_tiles(layout, tile_sizes(options.tile_elements).tile)),
      plan_(plan_update(layout, needs_of(setup), tile_sizes(options.tile_elements).tile)),
      store_(options.store(device, records_)),
      tensor_norms_(device, layout, part, setup),
      matrices_(device, layout, groups, setup) {
  initialise();
}

void ShardedOptimizer::walk(std::vector<Tile> tiles,
                            const std::function<void(const Tile&, const View&)>& visit) {
  TileWindow window(*store_, tiles, compute_);
  for (const Tile& tile : tiles) {
    visit(tile, window.acquire());
    window.release();
  }
}

void ShardedOptimizer::initialise() {
  walk(tiles_, [this](const Tile& tile, const View& bytes) {
    const std::vector<RecordPart>& parts = records_[static_cast<std::size_t>(tile.unit)].parts();
    device_.fill_zero(compute_, bytes);
    for (const StateSlice& slice : slices(tile, bytes)) {
      for (std::size_t i = 0; i < slice.states.size(); ++i) {
        const float value = parts[i + (options_.has_masters() ? 1 : 0)].initial;
        if (value != 0) kernels::fill(compute_, slice.states[i], value);
      }
      master_from_parameter(slice);
    }
  });
}

void ShardedOptimizer::master_from_parameter(const StateSlice& slice) {
  if (!slice.master.defined()) return;
  kernels::convert(compute_, parameters_.shard(slice.unit).flat(slice.begin, slice.count),
                   slice.master);
}

void ShardedOptimizer::for_each_slice(const std::function<void(const StateSlice&)>& visit) {
  walk(tiles_, [&](const Tile& tile, const View& bytes) {
    for (const StateSlice& slice : parameter_slices(tile, bytes)) visit(slice);
  });
}

void ShardedOptimizer::refresh_master(int parameter) {
  if (!options_.has_masters()) return;
  std::vector<Tile> tiles = tiles_;
  std::erase_if(tiles,
                [&](const Tile& tile) { return tile.unit != layout_.parameter(parameter).unit; });
  walk(std::move(tiles), [&](const Tile& tile, const View& bytes) {
    for (const StateSlice& slice : parameter_slices(tile, bytes))
      if (slice.parameter == parameter) master_from_parameter(slice);
  });
}

/// Cuts `range` at records.
void ShardedOptimizer::add_slices(const Tile& tile, const View& bytes, const StateSlice& range,
                                  std::vector<StateSlice>& slices) const {
  const RecordLayout& records = records_[static_cast<std::size_t>(tile.unit)];
  const UpdateRule& rule = setup_.rule(layout_.unit(tile.unit).group);
  const std::size_t states = rule.states().size();
  for (std::int64_t done = 0; done < range.count;) {
    StateSlice slice = range;
    slice.begin += done;
    slice.first += done;
    slice.count = records.run(slice.begin, range.count - done);
    done += slice.count;
    std::size_t part = 0;
    const auto next = [&] {
      return records.view(bytes, tile.begin, part++, slice.begin, slice.count);
    };
    if (options_.has_masters()) slice.master = next();
    for (std::size_t i = 0; i < states; ++i) slice.states.push_back(next());
    if (part < records.parts().size()) slice.workspace = next();
    slices.push_back(std::move(slice));
  }
}

std::vector<StateSlice> ShardedOptimizer::slices(const Tile& tile, const View& bytes) const {
  std::vector<StateSlice> result;
  add_slices(tile, bytes, {tile.unit, tile.begin, tile.count}, result);
  return result;
}

std::vector<StateSlice> ShardedOptimizer::parameter_slices(const Tile& tile,
                                                           const View& bytes) const {
  std::vector<StateSlice> result;
  const std::int64_t shard = parameters_.shard_rank() * layout_.unit(tile.unit).shard;
  for (const ParameterRun& run : layout_.runs(tile.unit, shard + tile.begin, tile.count)) {
    add_slices(tile, bytes,
               {tile.unit, tile.begin + run.offset, run.count, run.parameter, run.first}, result);
  }
  return result;
}

/// What a rule sees: the parameter is its own master, or gets a copy of it.
std::vector<UpdateSlice> ShardedOptimizer::update_slices(const std::vector<StateSlice>& states,
                                                         GradientReducer& gradients) const {
  std::vector<UpdateSlice> result;
  for (const StateSlice& state : states) {
    const View parameter = parameters_.shard(state.unit).flat(state.begin, state.count);
    UpdateSlice slice;
    slice.master = state.master.defined() ? state.master : parameter;
    slice.gradient = gradients.reduced(state.unit).flat(state.begin, state.count);
    slice.states = state.states;
    if (state.master.defined()) slice.copy = parameter;
    result.push_back(std::move(slice));
  }
  return result;
}

void ShardedOptimizer::run(const std::vector<UpdateStep>& steps, Stream& stream,
                           const UpdateInputs& inputs, float gradient_factor) {
  const StepContext context{inputs.step, gradient_factor};
  std::vector<Tile> tiles;
  for (const UpdateStep& step : steps)
    if (step.tile.count > 0) tiles.push_back(step.tile);
  TileWindow window(*store_, std::move(tiles), stream);
  std::vector<StateSlice> states;
  for (const UpdateStep& step : steps) {
    const UpdateRule& rule = setup_.rule(step.group);
    const RuleCall call{stream, rule, inputs.groups[static_cast<std::size_t>(step.group)], context};
    if (step.tile.count > 0) {
      const bool by_parameter = rule.needs() == RuleNeeds::tensor_norms;
      const View bytes = window.acquire();
      states = by_parameter ? parameter_slices(step.tile, bytes) : slices(step.tile, bytes);
    }
    switch (step.phase) {
      case UpdatePhase::blend:
        matrices_.blend(call, states, update_slices(states, inputs.gradients));
        break;
      case UpdatePhase::orthogonalise:
        matrices_.orthogonalise(call, step.tile.unit, inputs.loss_scale,
                                inputs.gradients.reduced(step.tile.unit));
        break;
      case UpdatePhase::directions:
        tensor_norms_.prepare(call, states, update_slices(states, inputs.gradients));
        break;
      case UpdatePhase::norms:
        tensor_norms_.exchange(stream);
        break;
      case UpdatePhase::apply:
        tensor_norms_.apply(call, states, update_slices(states, inputs.gradients));
        break;
      case UpdatePhase::update:
        rule.update(stream, call.settings, context, update_slices(states, inputs.gradients));
        break;
    }
    if (step.tile.count > 0) window.release();
    if (step.ends_unit) {
      Event written;
      stream.record(written);
      parameters_.publish(step.tile.unit, written);
    }
  }
}

void ShardedOptimizer::transform(const UpdateInputs& inputs) {
  run(plan_.transform, reduce_, inputs, static_cast<float>(1.0 / inputs.loss_scale));
  Event transformed;
  reduce_.record(transformed);
  compute_.wait(transformed);
}

void ShardedOptimizer::update(const UpdateInputs& inputs) {
  parameters_.begin_step(compute_);
  run(plan_.update, compute_, inputs, inputs.gradient_factor);
  parameters_.end_step();
}

}  // namespace zero3d
