#include "zero3d/engine/zero/sharded_optimizer.h"

#include <algorithm>
#include <iterator>

namespace zero3d {
namespace {

std::vector<RuleNeeds> needs_of(const OptimizerSetup& setup) {
  std::vector<RuleNeeds> needs;
  for (int group = 0; group < setup.group_count(); ++group)
    needs.push_back(setup.rule(group).needs());
  return needs;
}

std::vector<Tile> tiles_of(const std::vector<UpdateStep>& steps) {
  std::vector<Tile> tiles;
  for (const UpdateStep& step : steps)
    if (step.tile.count > 0) tiles.push_back(step.tile);
  return tiles;
}

}  // namespace

std::vector<RecordLayout> plan_records(const ParamLayout& layout, const OptimizerSetup& setup,
                                       const ShardedOptimizerOptions& options) {
  const std::int64_t record = tile_sizes(options.tile_elements).record;
  std::vector<RecordLayout> records;
  for (int index = 0; index < layout.unit_count(); ++index) {
    const Unit& unit = layout.unit(index);
    if (unit.frozen) {
      records.emplace_back();
      continue;
    }
    const UpdateRule& rule = setup.rule(unit.group);
    std::vector<RecordPart> parts;
    if (options.has_master(index)) parts.push_back({options.master_dtype});
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
      tensor_norms_(device, layout, part, setup,
                    {options.offloaded, options.host_tier, streams.host.get()}),
      matrices_(device, layout, groups, setup,
                {options.offloaded, options.host_tier, streams.host.get()}) {
  make_lanes(streams);
  initialise();
  if (!options_.delayed.settings.on() || !options_.offloads()) return;
  delayed_ = std::make_unique<DelayedUpdates>(device, layout, parameters, setup, options_.delayed,
                                              lane_records_[1], lanes_[1], streams);
}

std::vector<RecordLayout> ShardedOptimizer::records_of_lane(std::size_t index) const {
  std::vector<RecordLayout> records(records_.size());
  for (int unit = 0; unit < layout_.unit_count(); ++unit) {
    if (lane_of(unit) == index)
      records[static_cast<std::size_t>(unit)] = records_[static_cast<std::size_t>(unit)];
  }
  return records;
}

void ShardedOptimizer::make_lanes(const RankStreams& streams) {
  for (std::size_t index = 0; index < kLanes; ++index) {
    const bool on_host = index == 1;
    if (on_host && !options_.offloads()) continue;
    UpdateLane& lane = lanes_[index];
    lane.stream = on_host ? streams.host.get() : streams.compute.get();
    if (on_host) lane.clock = std::make_unique<WaitClock>();
    lane_records_[index] = records_of_lane(index);
    lane.store = (on_host ? options_.host_store : options_.store)(device_, lane_records_[index]);
    const std::int64_t piece = largest_record(lane_records_[index]);
    const bool in_place =
        options_.parameters == (on_host ? OffloadDevice::cpu : OffloadDevice::none);
    if (piece == 0 || in_place) continue;
    lane.pieces = std::make_unique<ParameterPieces>(device_, parameters_,
                                                    on_host ? options_.host_tier : Tier::device,
                                                    options_.parameter_dtype, piece);
  }
}

ShardedOptimizer::Walks ShardedOptimizer::walks(std::span<const Tile> tiles, Stream& device_stream,
                                                OffloadedGradients* gradients,
                                                bool gradients_ahead) {
  std::array<std::vector<Tile>, kLanes> parts;
  for (const Tile& tile : tiles) parts[lane_of(tile.unit)].push_back(tile);
  Walks walks;
  walks[0] = std::make_unique<LaneWalk>(lanes_[0], device_stream, std::move(parts[0]));
  if (lanes_[1].stream != nullptr) {
    walks[1] = std::make_unique<LaneWalk>(lanes_[1], *lanes_[1].stream, std::move(parts[1]),
                                          gradients, gradients_ahead);
  }
  return walks;
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
    if (options_.has_master(tile.unit)) slice.master = next();
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
std::vector<UpdateSlice> ShardedOptimizer::update_slices(const Tile& tile,
                                                         const std::vector<StateSlice>& states,
                                                         const LaneWalk& walk,
                                                         GradientReducer& gradients) const {
  const bool in_place = options_.in_place(tile.unit);
  std::vector<UpdateSlice> result;
  for (const StateSlice& state : states) {
    UpdateSlice slice;
    slice.master = state.master;
    slice.gradient = walk.gradient(gradients, tile, state.begin, state.count);
    slice.states = state.states;
    if (in_place) {
      const View parameter = parameters_.shard(state.unit).flat(state.begin, state.count);
      (state.master.defined() ? slice.copy : slice.master) = parameter;
    }
    result.push_back(std::move(slice));
  }
  return result;
}

/// The phase that makes a tile's parameters final: in place, or record by record in pieces that go
/// where they lie.
void ShardedOptimizer::finish(const UpdateStep& step, const RuleCall& call,
                              std::span<const StateSlice> states, std::vector<UpdateSlice> slices) {
  const auto apply = [&](std::size_t first, std::size_t count) {
    const auto part = std::span(slices).subspan(first, count);
    if (step.phase == UpdatePhase::apply) {
      tensor_norms_.apply(call, states.subspan(first, count), part);
    } else {
      call.rule.update(call.stream, call.settings, call.context, part);
    }
  };
  if (options_.in_place(step.tile.unit)) return apply(0, slices.size());
  ParameterPieces& pieces = *lane(step.tile.unit).pieces;
  const RecordLayout& records = records_[static_cast<std::size_t>(step.tile.unit)];
  const std::int64_t end = step.tile.begin + step.tile.count;
  std::size_t first = 0;
  for (std::int64_t begin = step.tile.begin; begin < end;) {
    const View piece = pieces.take(call.stream, records.run(begin, end - begin));
    std::size_t next = first;
    std::int64_t covered = 0;
    for (; next < states.size() && states[next].begin < begin + piece.numel(); ++next) {
      slices[next].copy = piece.flat(states[next].begin - begin, states[next].count);
      covered += states[next].count;
    }
    if (covered < piece.numel()) device_.fill_zero(call.stream, piece);  // padding stays zero
    if (next > first) apply(first, next - first);
    pieces.send(call.stream, step.tile.unit, begin);
    begin += piece.numel();
    first = next;
  }
}

void ShardedOptimizer::run_phase(const UpdateStep& step, const RuleCall& call, const LaneWalk* walk,
                                 const UpdateInputs& inputs) {
  std::vector<StateSlice> states;
  std::vector<UpdateSlice> slices;
  if (walk != nullptr) {
    const bool by_parameter = call.rule.needs() == RuleNeeds::tensor_norms;
    states = by_parameter ? parameter_slices(step.tile, walk->states())
                          : this->slices(step.tile, walk->states());
    slices = update_slices(step.tile, states, *walk, inputs.gradients);
  }
  switch (step.phase) {
    case UpdatePhase::blend:
      return matrices_.blend(call, states, slices);
    case UpdatePhase::orthogonalise:
      return matrices_.orthogonalise(call, step.tile.unit, inputs.loss_scale, inputs.gradients);
    case UpdatePhase::directions:
      return tensor_norms_.prepare(call, states, slices);
    case UpdatePhase::norms:
      return tensor_norms_.exchange(call.stream);
    case UpdatePhase::apply:
    case UpdatePhase::update:
      return finish(step, call, states, std::move(slices));
  }
}

void ShardedOptimizer::run(const std::vector<UpdateStep>& steps, Walks walks, Stream& device_stream,
                           const UpdateInputs& inputs, float gradient_factor) {
  const StepContext context{inputs.step, gradient_factor};
  for (const UpdateStep& step : steps) {
    const bool on_host = step.tile.count > 0 && lane_of(step.tile.unit) == 1;
    Stream& stream = on_host ? *lanes_[1].stream : device_stream;
    const RuleCall call{stream, setup_.rule(step.group),
                        inputs.groups[static_cast<std::size_t>(step.group)], context};
    LaneWalk* const walk = step.tile.count > 0 ? walks[on_host ? 1 : 0].get() : nullptr;
    if (walk != nullptr) walk->open();
    run_phase(step, call, walk, inputs);
    if (walk != nullptr) walk->close();
    if (step.ends_unit) publish(step.tile.unit, stream);
  }
}

void ShardedOptimizer::publish(int unit, Stream& stream) {
  Event written;
  if (options_.in_place(unit)) {
    stream.record(written);
  } else {
    written = lane(unit).pieces->arrived();
  }
  parameters_.publish(unit, written);
}

void ShardedOptimizer::transform(const UpdateInputs& inputs) {
  drop_ahead();
  run(plan_.transform,
      walks(tiles_of(plan_.transform), reduce_, inputs.gradients.offloaded(), false), reduce_,
      inputs, static_cast<float>(1.0 / inputs.loss_scale));
  Event transformed;
  reduce_.record(transformed);
  compute_.wait(transformed);
}

void ShardedOptimizer::drop_ahead() {
  for (std::unique_ptr<LaneWalk>& walk : ahead_) {
    if (walk != nullptr) walk->abandon();
    walk.reset();
  }
}

void ShardedOptimizer::read_ahead(GradientReducer& gradients) {
  if (ahead_[0] != nullptr || transforms() || early_.size() > 0 || delayed_ != nullptr) return;
  ahead_ = walks(tiles_of(plan_.update), compute_, gradients.offloaded());
  for (const auto& walk : ahead_)
    if (walk != nullptr) walk->read_ahead();
}

bool ShardedOptimizer::updates_units_alone() const {
  return delayed_ == nullptr &&
         std::all_of(plan_.update.begin(), plan_.update.end(),
                     [](const UpdateStep& step) { return step.phase == UpdatePhase::update; }) &&
         !transforms();
}

void ShardedOptimizer::begin_step() {
  for (const UpdateLane& lane : lanes_)
    if (lane.stream != nullptr) parameters_.begin_step(*lane.stream);
}

void ShardedOptimizer::update_early(int unit, const UpdateInputs& inputs) {
  if (early_.empty()) {
    drop_ahead();
    parameters_.begin_step(*lanes_[1].stream);
    early_.resize(layout_.units().size());
  }
  early_[static_cast<std::size_t>(unit)] = true;
  std::vector<UpdateStep> steps;
  std::copy_if(plan_.update.begin(), plan_.update.end(), std::back_inserter(steps),
               [unit](const UpdateStep& step) { return step.tile.unit == unit; });
  run(steps, walks(tiles_of(steps), compute_, inputs.gradients.offloaded()), compute_, inputs,
      inputs.gradient_factor);
}

void ShardedOptimizer::update(const UpdateInputs& inputs) {
  begin_step();
  if (delayed_ != nullptr) {
    const std::vector<UpdateStep> steps = steps_of_device();
    run(steps, walks(tiles_of(steps), compute_, nullptr), compute_, inputs, inputs.gradient_factor);
    delayed_->update(inputs);
  } else if (early_.empty()) {
    Walks walks = std::move(ahead_);
    if (walks[0] == nullptr)
      walks = this->walks(tiles_of(plan_.update), compute_, inputs.gradients.offloaded());
    run(plan_.update, std::move(walks), compute_, inputs, inputs.gradient_factor);
  } else {
    std::vector<UpdateStep> steps;
    std::copy_if(plan_.update.begin(), plan_.update.end(), std::back_inserter(steps),
                 [this](const UpdateStep& step) {
                   return !early_[static_cast<std::size_t>(step.tile.unit)];
                 });
    run(steps, walks(tiles_of(steps), compute_, inputs.gradients.offloaded()), compute_, inputs,
        inputs.gradient_factor);
    early_.clear();
  }
  parameters_.end_step();
}

std::vector<UpdateStep> ShardedOptimizer::steps_of_device() const {
  std::vector<UpdateStep> steps;
  std::copy_if(plan_.update.begin(), plan_.update.end(), std::back_inserter(steps),
               [this](const UpdateStep& step) { return lane_of(step.tile.unit) == 0; });
  return steps;
}

void ShardedOptimizer::flush() {
  if (!pending()) return;
  begin_step();
  delayed_->flush();
  parameters_.end_step();
}

std::optional<UpdateUse> ShardedOptimizer::update_use() const {
  if (delayed_ == nullptr) return std::nullopt;
  UpdateUse use = delayed_->use();
  for (const Tile& tile : tiles_) use.on_device += lane_of(tile.unit) == 0 ? tile.count : 0;
  return use;
}

}  // namespace zero3d
