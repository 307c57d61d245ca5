#include "zero3d/engine/zero/parameter_store.h"

#include <algorithm>
#include <cstring>

#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/device/parallel.h"

namespace zero3d {
namespace {

constexpr std::int64_t kLoadChunk = 1 << 16;        // elements read or drawn by one task
constexpr std::int64_t kStagingElements = 1 << 22;  // on their way from the source to a shard

}  // namespace

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
  for (int index = 0; index < layout.unit_count(); ++index) {
    const Unit& unit = layout.unit(index);
    UnitState& s = state(index);
    const bool persistent = options.shard_parameters && unit.persistent && layout.shards() > 1;
    const auto allocate = [&](std::int64_t elements) {
      return StaggeredTensor(device.memory(), options.dtype, elements, Category::parameters,
                             ArrayColour::parameter);
    };
    if (!gathers(index)) s.whole = allocate(unit.padded);
    if (gathers(index) || persistent) s.shard = allocate(unit.shard);
    if (gathers(index) && groups.secondary) {
      s.secondary = Tensor(device.memory(), kNoStream, options.dtype,
                           Shape{unit.padded / groups.secondary->size()}, Category::parameters);
    }
  }
}

View ParameterStore::shard(int unit) {
  UnitState& s = state(unit);
  if (s.shard.defined()) return s.shard.view();
  const std::int64_t elements = layout_.unit(unit).shard;
  return s.whole.view().flat(groups_.gather->rank() * elements, elements);
}

View ParameterStore::whole_view(int unit) {
  return gathers(unit) ? state(unit).gathered : state(unit).whole.view();
}

void ParameterStore::load(const ParameterSource& source) {
  std::int64_t largest = 0;
  for (const Unit& unit : layout_.units()) largest = std::max(largest, unit.shard);
  const Tensor staging(device_.memory(Tier::pinned), compute_, options_.dtype,
                       Shape{std::min(largest, kStagingElements)}, Category::gathered_parameters);
  for (int unit = 0; unit < layout_.unit_count(); ++unit) {
    const View target = shard(unit);
    const std::int64_t begin = groups_.gather->rank() * layout_.unit(unit).shard;
    device_.fill_zero(compute_, target);
    for (const ParameterRun& run : layout_.runs(unit, begin, layout_.unit(unit).shard))
      load_run(source, run, target.flat(run.offset, run.count), staging);
    Event written;
    compute_.record(written);
    publish(unit, written);
  }
  gather_published();
  compute_.synchronize();
  gather_.synchronize();
}

/// By way of host memory, as much of it at a time as `staging` holds.
void ParameterStore::load_run(const ParameterSource& source, const ParameterRun& run,
                              const View& target, const View& staging) {
  const LayoutParameter& p = layout_.parameter(run.parameter);
  for (std::int64_t done = 0; done < run.count; done += staging.numel()) {
    const View piece = staging.flat(0, std::min(staging.numel(), run.count - done));
    const std::int64_t begin = run.first + done;
    compute_.host_task("load " + p.spec.name, {writes(piece)}, [&source, &p, begin, piece] {
      if (!p.placement.whole()) std::memset(piece.data(), 0, piece.bytes());  // padding
      parallel_for(piece.numel(), kLoadChunk, [&](std::int64_t first, std::int64_t last) {
        source.read(p.spec, global_runs(p.placement, begin + first, last - first),
                    piece.flat(first, last - first));
      });
    });
    device_.copy(compute_, target.flat(done, piece.numel()), piece);
  }
}

void ParameterStore::resize_arena(std::int64_t elements) {
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
      issue_gather(gather.unit, arena_.acquire(gather_, gather.offset, elements));
    }
  }
  for (int unit : layout_.block_units(op.block)) {
    if (gathers(unit) && !state(unit).live) gather_on_demand(unit);
    if (state(unit).ready.recorded()) compute_.wait(state(unit).ready);
  }
  std::vector<ConstView> views;
  views.reserve(layout_.block_parameters(op.block).size());
  for (int index : layout_.block_parameters(op.block)) {
    const LayoutParameter& parameter = layout_.parameter(index);
    views.push_back(parameter.view_in(whole_view(parameter.unit)));
  }
  return views;
}

void ParameterStore::release(const Op& op) {
  if (follows_plan_) {
    for (int index : plan_->releases[position_])
      give_up(plan_->gathers[static_cast<std::size_t>(index)].unit);
    return;
  }
  for (int unit : layout_.block_units(op.block)) {
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

void ParameterStore::issue_gather(int unit, const View& target) {
  UnitState& s = state(unit);
  s.gathered = target;
  s.live = true;
  if (s.updated.recorded()) gather_.wait(s.updated);
  if (s.secondary_valid) {
    groups_.secondary->all_gather(gather_, s.secondary.view(), target);
  } else {
    groups_.gather->all_gather(gather_, s.shard.view(), target);
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
  s.on_demand = Tensor(device_.memory(), gather_, options_.dtype, Shape{layout_.unit(unit).padded},
                       Category::gathered_parameters);
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
  copy_in_->wait(ready);
  device_.copy(*copy_in_, shard(unit).flat(begin, values.numel()), values);
  Event copied;
  copy_in_->record(copied);
  return copied;
}

Event ParameterStore::read_shard(int unit, std::int64_t begin, const View& into,
                                 const Event& ready) {
  copy_out_->wait(ready);
  if (state(unit).updated.recorded()) copy_out_->wait(state(unit).updated);
  device_.copy(*copy_out_, into, shard(unit).flat(begin, into.numel()));
  Event copied;
  copy_out_->record(copied);
  return copied;
}

void ParameterStore::publish(int unit, const Event& written) {
  UnitState& s = state(unit);
  s.updated = written;
  if (!s.whole.defined()) return;
  if (layout_.shards() == 1) {
    s.ready = written;
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
    gather_.wait(state(unit).updated);
    segments.push_back({shard(unit), state(unit).whole.view()});
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

/// Device memory for a whole unit between passes: its kept copy, the arena, which has the room that
/// a budget may not have beside it, or `own`.
View ParameterStore::room_for_whole(int unit, Stream& stream, Tensor& own) {
  if (!gathers(unit)) return state(unit).whole.view();
  const std::int64_t elements = layout_.unit(unit).padded;
  const bool busy =
      std::any_of(units_.begin(), units_.end(), [](const UnitState& s) { return s.live; });
  if (!busy && arena_.elements() >= elements) return arena_.acquire(stream, 0, elements);
  own = Tensor(device_.memory(), stream, options_.dtype, Shape{elements},
               Category::gathered_parameters);
  return own.view();
}

void ParameterStore::with_whole(int unit, const std::function<void(View)>& use) {
  compute_.synchronize();
  gather_.synchronize();
  Tensor own;
  const View whole = room_for_whole(unit, gather_, own);
  if (gathers(unit)) groups_.gather->all_gather(gather_, state(unit).shard.view(), whole);
  const Tensor host(device_.memory(Tier::pinned), kNoStream, options_.dtype, whole.shape(),
                    Category::gathered_parameters);
  device_.copy(gather_, host, whole);
  gather_.synchronize();
  own.reset();
  use(device_.host_write(host));
}

void ParameterStore::store_whole(int unit, const ConstView& values, Communicator& replicas,
                                 int writer) {
  Tensor own;
  const View whole = room_for_whole(unit, compute_, own);
  if (replicas.rank() == writer) device_.copy(compute_, whole, values);
  replicas.broadcast(compute_, whole, writer);
  const View mine = shard(unit);
  const View piece = whole.flat(groups_.gather->rank() * mine.numel(), mine.numel());
  if (mine.data() != piece.data()) device_.copy(compute_, mine, piece);
  Event written;
  compute_.record(written);
  publish(unit, written);
  gather_published();
  state(unit).secondary_valid = false;
  compute_.synchronize();
  gather_.synchronize();
}

}  // namespace zero3d
