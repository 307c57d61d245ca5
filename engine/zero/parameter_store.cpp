#include "zero3d/engine/zero/parameter_store.h"

#include <algorithm>

#include "zero3d/core/log.h"
#include "zero3d/core/text.h"

namespace zero3d {

ParameterStore::ParameterStore(Device& device, const ParamLayout& layout, ZeroGroups& groups,
                               const ParameterStoreOptions& options, const RankStreams& streams)
    : device_(device),
      layout_(layout),
      groups_(groups),
      options_(options),
      compute_(*streams.compute),
      gather_(*streams.gather),
      copy_in_(streams.copy_in.get()),
      copy_out_(streams.copy_out.get()),
      units_(layout.units().size()),
      placed_(layout.units().size()) {
  const bool sharded = options.fetches(layout);
  if (sharded && options.offload.on())
    home_ = std::make_unique<ShardHome>(device, layout, options.offload, options.dtype, streams);
  for (int index = 0; index < layout.unit_count(); ++index) {
    const Unit& unit = layout.unit(index);
    UnitState& s = state(index);
    const auto allocate = [&](std::int64_t elements) {
      return StaggeredTensor(device.memory(), options.dtype, elements, Category::parameters,
                             ArrayColour::parameter);
    };
    if (!gathers(index)) s.whole = allocate(unit.padded);
    if (sharded && home_ == nullptr) s.shard = allocate(unit.shard);
    if (gathers(index)) allocate_secondary(index);
  }
}

void ParameterStore::allocate_secondary(int unit) {
  if (!groups_.secondary) return;
  state(unit).secondary =
      Tensor(device_.memory(), kNoStream, options_.dtype,
             Shape{layout_.unit(unit).padded / groups_.secondary->size()}, Category::parameters);
}

View ParameterStore::shard(int unit) {
  if (home_ != nullptr) return home_->memory(unit);
  UnitState& s = state(unit);
  return s.shard.defined() ? s.shard.view() : own_piece(unit, s.whole.view());
}

View ParameterStore::own_piece(int unit, const View& whole) const {
  const std::int64_t elements = layout_.unit(unit).shard;
  return whole.flat(groups_.gather->rank() * elements, elements);
}

View ParameterStore::whole_view(int unit) {
  return gathers(unit) ? state(unit).gathered : state(unit).whole.view();
}

void ParameterStore::resize_arena(std::int64_t elements) {
  arena_elements_ = elements;
  arena_ = FencedArena();  // before the new one is allocated: both at once are in no plan
  arena_ = FencedArena(device_, options_.dtype, elements, Category::gathered_parameters);
}

void ParameterStore::begin_pass(const FetchPlan& plan, int first_micro_batch) {
  for (int unit = 0; unit < layout_.unit_count(); ++unit) {
    if (state(unit).live) give_up(unit);
  }
  plan_ = &plan;
  follows_plan_ = options_.shard_parameters && !plan.ops.empty();
  first_micro_batch_ = first_micro_batch;
  next_ = 0;
}

/// Whether the plan goes on with `op`; it then becomes the position.
bool ParameterStore::comes_next(const Op& op) {
  const std::vector<Op>& ops = plan_->ops;
  while (next_ < ops.size() && !uses_parameters(ops[next_].kind)) ++next_;
  if (next_ == ops.size()) return false;
  Op planned = ops[next_];
  planned.micro_batch += first_micro_batch_;
  position_ = next_++;
  return planned == op;
}

std::vector<ConstView> ParameterStore::acquire(const Op& op) {
  if (follows_plan_ && !comes_next(op)) depart_from_plan(op);
  if (follows_plan_) {
    for (int index : plan_->issues[position_]) {
      const FetchPlan::Gather& gather = plan_->gathers[static_cast<std::size_t>(index)];
      const std::int64_t elements = layout_.unit(gather.unit).padded;
      placed_[static_cast<std::size_t>(gather.unit)] = {gather.offset, elements};
      issue_gather(gather.unit, arena_.acquire(first_writer(gather.unit), gather.offset, elements));
    }
  }
  const int part = layout_.part(op.block, op.tile);
  for (int unit : layout_.part_units(part)) {
    if (gathers(unit) && !state(unit).live) gather_on_demand(unit);
    const Event& ready = state(unit).ready;
    if (!ready.recorded()) continue;
    if (copy_in_ != nullptr) {
      clock_.wait(compute_, ready);
    } else {
      compute_.wait(ready);
    }
  }
  std::vector<ConstView> views;
  views.reserve(layout_.block_parameters(op.block).size());
  for (int index : layout_.block_parameters(op.block)) {
    const LayoutParameter& parameter = layout_.parameter(index);
    views.push_back(parameter.used_in(part) ? parameter.view_in(whole_view(parameter.unit))
                                            : ConstView());
  }
  return views;
}

void ParameterStore::release(const Op& op) {
  if (follows_plan_) {
    for (int index : plan_->releases[position_])
      give_up(plan_->gathers[static_cast<std::size_t>(index)].unit);
    return;
  }
  for (int unit : layout_.part_units(layout_.part(op.block, op.tile))) {
    if (state(unit).live) give_up(unit);
  }
}

void ParameterStore::depart_from_plan(const Op& op) {
  follows_plan_ = false;
  if (warned_departure_) return;
  warned_departure_ = true;
  log_warning(concat("block ", op.block,
                     " was acquired out of the planned order: its parameters, and those after it "
                     "in this pass, are gathered on "
                     "demand, without prefetch. Acquire blocks forward in order, then backward in "
                     "reverse order."));
}

/// The stream whose work comes first to where `unit` is gathered.
Stream& ParameterStore::first_writer(int unit) {
  return home_ != nullptr && !state(unit).secondary_valid ? *copy_in_ : gather_;
}

/// What the gather stream sends to have the unit whole in `whole`: the shard, or a copy of one that
/// is offloaded in its place there.
ConstView ParameterStore::bring(int unit, const View& whole) {
  UnitState& s = state(unit);
  if (home_ == nullptr) {
    if (s.updated.recorded()) gather_.wait(s.updated);
    return s.shard.view();
  }
  const View piece = own_piece(unit, whole);
  home_->read(unit, 0, piece, s.updated);
  Event brought;
  copy_in_->record(brought);
  gather_.wait(brought);
  return piece;
}

void ParameterStore::issue_gather(int unit, const View& target) {
  UnitState& s = state(unit);
  s.gathered = target;
  s.live = true;
  if (s.secondary_valid) {
    groups_.secondary->all_gather(gather_, s.secondary.view(), target);
  } else {
    groups_.gather->all_gather(gather_, bring(unit, target), target);
    if (s.secondary.defined()) {
      const std::int64_t piece = s.secondary.numel();
      device_.copy(gather_, s.secondary.view(),
                   target.flat(groups_.secondary->rank() * piece, piece));
      s.secondary_valid = true;
    }
  }
  gather_.record(s.ready);
}

void ParameterStore::gather_on_demand(int unit) {
  UnitState& s = state(unit);
  s.on_demand = Tensor(device_.memory(), first_writer(unit), options_.dtype,
                       Shape{layout_.unit(unit).padded}, Category::gathered_parameters);
  issue_gather(unit, s.on_demand.view());
}

void ParameterStore::give_up(int unit) {
  UnitState& s = state(unit);
  Event last_use;
  compute_.record(last_use);
  if (s.on_demand.defined()) {
    s.on_demand.used_on(last_use);
    s.on_demand.reset();
  } else {
    const auto& [offset, elements] = placed_[static_cast<std::size_t>(unit)];
    arena_.release(offset, elements, last_use);
  }
  s.gathered = View();
  s.live = false;
}

void ParameterStore::begin_step(Stream& writer) {
  for (const UnitState& s : units_)
    if (s.ready.recorded()) writer.wait(s.ready);
}

Event ParameterStore::update_shard(int unit, std::int64_t begin, const ConstView& values,
                                   const Event& ready) {
  if (home_ != nullptr) return home_->write(unit, begin, values, ready);
  Stream& stream = copy_in_ != nullptr ? *copy_in_ : compute_;
  stream.wait(ready);
  device_.copy(stream, shard(unit).flat(begin, values.numel()), values);
  Event copied;
  stream.record(copied);
  return copied;
}

Event ParameterStore::read_shard(int unit, std::int64_t begin, const View& target,
                                 const Event& ready) {
  const Event& updated = state(unit).updated;
  Stream& stream = home_ != nullptr ? *copy_in_ : *copy_out_;
  stream.wait(ready);
  if (home_ != nullptr) {
    home_->read(unit, begin, target, updated);
  } else {
    if (updated.recorded()) stream.wait(updated);
    device_.copy(stream, target, shard(unit).flat(begin, target.numel()));
  }
  Event copied;
  stream.record(copied);
  return copied;
}

void ParameterStore::publish(int unit, const Event& written) {
  UnitState& s = state(unit);
  s.updated = written;
  if (!s.whole.defined()) return;
  if (home_ != nullptr) {
    Event last_use;
    compute_.record(last_use);
    copy_in_->wait(last_use);
    home_->read(unit, 0, own_piece(unit, s.whole.view()), written);
    copy_in_->record(s.updated);
  }
  if (layout_.shards() == 1) {
    s.ready = s.updated;
    return;
  }
  // At most a quarter of the model at a time, so that gathering overlaps the update however small
  // the model is.
  const std::int64_t limit = std::min(options_.publish_elements, layout_.padded() / 4);
  const std::int64_t elements = layout_.unit(unit).padded;
  if (published_elements_ > 0 && published_elements_ + elements > limit) gather_published();
  published_.push_back(unit);
  published_elements_ += elements;
}

void ParameterStore::gather_published() {
  std::vector<GatherSegment> segments;
  for (int unit : published_) {
    const View whole = state(unit).whole.view();
    gather_.wait(state(unit).updated);
    segments.push_back({home_ != nullptr ? own_piece(unit, whole) : shard(unit), whole});
  }
  if (!segments.empty()) groups_.gather->all_gather(gather_, segments);
  for (int unit : published_) gather_.record(state(unit).ready);
  published_.clear();
  published_elements_ = 0;
}

void ParameterStore::end_step() {
  gather_published();
  for (UnitState& s : units_) s.secondary_valid = false;
}

}  // namespace zero3d
