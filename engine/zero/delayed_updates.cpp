#include "zero3d/engine/zero/delayed_updates.h"

#include <algorithm>

#include "zero3d/engine/zero/delayed_plan.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

constexpr std::int64_t kBlock = ParamLayout::kAlignment;

}  // namespace

std::vector<RecordLayout> DelayedUpdates::plan_chosen(const ParamLayout& layout,
                                                      const DelayedUpdateOptions& options,
                                                      const std::vector<RecordLayout>& states) {
  const std::vector<std::int64_t> most =
      most_chosen(layout, options.offloaded, options.settings.share);
  std::vector<RecordLayout> records(states.size());
  for (std::size_t unit = 0; unit < states.size(); ++unit) {
    if (most[unit] > 0)
      records[unit] =
          RecordLayout(most[unit] * kBlock, states[unit].record_elements(), states[unit].parts());
  }
  return records;
}

std::vector<RecordLayout> DelayedUpdates::plan_pending(const DelayedUpdateOptions& options,
                                                       const std::vector<RecordLayout>& states) {
  std::vector<RecordLayout> records(states.size());
  for (std::size_t unit = 0; unit < states.size(); ++unit) {
    if (options.offloaded[unit])
      records[unit] =
          RecordLayout(states[unit].elements(), states[unit].record_elements(), {{DType::f32}});
  }
  return records;
}

std::int64_t DelayedUpdates::staging_bytes(const std::vector<RecordLayout>& chosen,
                                           DType gradient_dtype) {
  std::int64_t largest = 0;
  for (const RecordLayout& unit : chosen) largest = std::max(largest, unit.elements());
  return static_cast<std::int64_t>(kStaged) * bytes_of(largest, gradient_dtype);
}

DelayedUpdates::DelayedUpdates(Device& device, const ParamLayout& layout,
                               ParameterStore& parameters, const OptimizerSetup& setup,
                               const DelayedUpdateOptions& options,
                               const std::vector<RecordLayout>& states, UpdateLane& host,
                               const RankStreams& streams)
    : device_(device),
      layout_(layout),
      parameters_(parameters),
      setup_(setup),
      options_(options),
      states_(states),
      host_(host),
      compute_(*streams.compute),
      copy_in_(*streams.copy_in),
      copy_out_(*streams.copy_out),
      late_(streams.late.get()),
      chosen_records_(plan_chosen(layout, options, states)),
      pending_records_(plan_pending(options, states)),
      chosen_store_(make_device_state_store(device, chosen_records_)) {
  for (int index = 0; index < layout.unit_count(); ++index) {
    if (!options.offloaded[static_cast<std::size_t>(index)]) continue;
    const auto blocks = static_cast<std::size_t>(layout.unit(index).shard / kBlock);
    units_.push_back({index, {}, std::vector<bool>(blocks), std::vector<std::int64_t>(blocks)});
  }
  const StateStoreFactory pending = make_memory_state_store(options.host_tier, Category::gradients);
  for (int set = 0; set < pending_sets(options.settings); ++set)
    pending_.push_back(pending(device, pending_records_));
  const std::int64_t bytes = staging_bytes(chosen_records_, options.gradient_dtype);
  for (Staged& staged : staged_) {
    staged.bytes = Tensor(
        device.memory(), kNoStream, options.gradient_dtype,
        Shape{bytes / bytes_of(1, options.gradient_dtype) / static_cast<std::int64_t>(kStaged)},
        Category::optimizer_workspace);
  }
}

/// All of a unit, for work on `stream`, behind what used it last.
View DelayedUpdates::open(StateStore& store, int unit, const RecordLayout& records,
                          Stream& stream) {
  Event ready;
  const View bytes = store.open(0, {unit, 0, records.elements()}, ready, true);
  if (ready.recorded()) stream.wait(ready);
  return bytes;
}

void DelayedUpdates::close(StateStore& store, int unit, const RecordLayout& records, Stream& stream,
                           bool changed) {
  Event used;
  stream.record(used);
  store.close(0, {unit, 0, records.elements()}, used, changed);
}

std::vector<DelayedUpdates::Run> DelayedUpdates::chosen_runs(const Unit& unit) const {
  std::vector<Run> runs;
  const std::int64_t record = states(unit).record_elements();
  for (std::size_t i = 0; i < unit.chosen.size(); ++i) {
    const std::int64_t place = static_cast<std::int64_t>(i) * kBlock;
    const std::int64_t begin = unit.chosen[i] * kBlock;
    const std::int64_t updates = unit.updates[static_cast<std::size_t>(unit.chosen[i])];
    const bool joins = !runs.empty() && runs.back().begin + runs.back().count == begin &&
                       runs.back().updates == updates && place % record != 0 && begin % record != 0;
    if (joins) {
      runs.back().count += kBlock;
    } else {
      runs.push_back({place, begin, kBlock, updates});
    }
  }
  return runs;
}

/// Of elements of one record.
std::vector<DelayedUpdates::Run> DelayedUpdates::rest_runs(const Unit& unit, std::int64_t begin,
                                                           std::int64_t count) const {
  std::vector<Run> runs;
  for (std::int64_t at = begin; at < begin + count; at += kBlock) {
    const auto block = static_cast<std::size_t>(at / kBlock);
    if (unit.is_chosen[block]) continue;
    const bool joins = !runs.empty() && runs.back().begin + runs.back().count == at &&
                       runs.back().updates == unit.updates[block];
    if (joins) {
      runs.back().count += kBlock;
    } else {
      runs.push_back({0, at, kBlock, unit.updates[block]});
    }
  }
  return runs;
}

UpdateSlice DelayedUpdates::slice_of(const RecordLayout& records, const View& bytes,
                                     std::int64_t begin, std::int64_t count) {
  UpdateSlice slice;
  slice.master = records.view(bytes, 0, 0, begin, count);
  for (std::size_t part = 1; part < records.parts().size(); ++part)
    slice.states.push_back(records.view(bytes, 0, part, begin, count));
  return slice;
}

void DelayedUpdates::run(Stream& stream, const Unit& unit, float factor,
                         const Batches& batches) const {
  const int group = layout_.unit(unit.index).group;
  for (const auto& [number, slices] : batches) {
    setup_.rule(group).update(stream, groups_[static_cast<std::size_t>(group)], {number, factor},
                              slices);
  }
}

void DelayedUpdates::select(OffloadedGradients& gradients) {
  bring_home();
  for (Unit& unit : units_) {
    unit.chosen = choose_blocks(layout_, unit.index, parameters_.shard_rank(),
                                options_.settings.share, gradients.host_square_sums(unit.index));
    std::fill(unit.is_chosen.begin(), unit.is_chosen.end(), false);
    for (const std::int64_t block : unit.chosen)
      unit.is_chosen[static_cast<std::size_t>(block)] = true;
  }
  take_again();
}

/// Copies the chosen blocks' states to the host's records, or from there.
void DelayedUpdates::move_chosen(bool home) {
  Stream& stream = home ? copy_out_ : copy_in_;
  for (const Unit& unit : units_) {
    if (unit.chosen.empty()) continue;
    const View there = open(*host_.store, unit.index, states(unit), stream);
    const View here = open(*chosen_store_, unit.index, chosen(unit), stream);
    for (const Run& run : chosen_runs(unit)) {
      for (std::size_t part = 0; part < states(unit).parts().size(); ++part) {
        const View on_host = states(unit).view(there, 0, part, run.begin, run.count);
        const View on_device = chosen(unit).view(here, 0, part, run.place, run.count);
        device_.copy(stream, home ? on_host : on_device, home ? on_device : on_host);
      }
    }
    close(*host_.store, unit.index, states(unit), stream, home);
    close(*chosen_store_, unit.index, chosen(unit), stream, !home);
  }
}

/// Gradients of the chosen blocks, of the gradients' records, which are those of the states.
void DelayedUpdates::stage(const Unit& unit, OffloadedGradients& gradients, Staged& staged) {
  if (unit.chosen.empty()) return;
  const RecordLayout& records = gradients.records(unit.index);
  if (staged.free.recorded()) copy_in_.wait(staged.free);
  const View bytes = open(gradients.store(), unit.index, records, copy_in_);
  for (const Run& run : chosen_runs(unit)) {
    device_.copy(copy_in_, staged.bytes.view().flat(run.place, run.count),
                 records.view(bytes, 0, 0, run.begin, run.count));
  }
  close(gradients.store(), unit.index, records, copy_in_, false);
  staged.copied = Event();
  copy_in_.record(staged.copied);
}

/// Adds the step's gradients to those that wait; the first of a round are written.
void DelayedUpdates::accumulate(const Unit& unit, OffloadedGradients& gradients, float factor) {
  Stream& stream = *host_.stream;
  const RecordLayout& records = gradients.records(unit.index);
  const RecordLayout& waiting = pending_records_[static_cast<std::size_t>(unit.index)];
  const View from = open(gradients.store(), unit.index, records, stream);
  const View to = open(*pending_[set_], unit.index, waiting, stream);
  for (std::int64_t begin = 0; begin < records.elements();) {
    const std::int64_t count = records.run(begin, records.elements() - begin);
    const View gradient = records.view(from, 0, 0, begin, count);
    const View sum = waiting.view(to, 0, 0, begin, count);
    if (waiting_ > 0) {
      kernels::add_scaled(stream, gradient, factor, sum);
    } else {
      kernels::convert(stream, gradient, sum);
      kernels::scale(stream, sum, factor);
    }
    begin += count;
  }
  close(gradients.store(), unit.index, records, stream, false);
  close(*pending_[set_], unit.index, waiting, stream);
}

void DelayedUpdates::update_chosen(Unit& unit, float factor, Staged& staged) {
  if (unit.chosen.empty()) return;
  compute_.wait(staged.copied);
  const View bytes = open(*chosen_store_, unit.index, chosen(unit), compute_);
  const View parameters = parameters_.shard(unit.index);
  Batches batches;
  for (const Run& run : chosen_runs(unit)) {
    UpdateSlice slice = slice_of(chosen(unit), bytes, run.place, run.count);
    slice.gradient = staged.bytes.view().flat(run.place, run.count);
    slice.copy = parameters.flat(run.begin, run.count);
    batches[run.updates + 1].push_back(std::move(slice));
  }
  run(compute_, unit, factor, batches);
  close(*chosen_store_, unit.index, chosen(unit), compute_);
  staged.free = Event();
  compute_.record(staged.free);
  for (const std::int64_t block : unit.chosen) ++unit.updates[static_cast<std::size_t>(block)];
  use_.on_device += static_cast<std::int64_t>(unit.chosen.size()) * kBlock;
}

/// The blocks that are not chosen, from what waits; `sends`: their parameters take effect.
void DelayedUpdates::update_rest(Unit& unit, Stream& stream, float factor, bool sends) {
  const RecordLayout& records = states(unit);
  const RecordLayout& waiting = pending_records_[static_cast<std::size_t>(unit.index)];
  const View bytes = open(*host_.store, unit.index, records, stream);
  const View sums = open(*pending_[set_], unit.index, waiting, stream);
  for (std::int64_t begin = 0; begin < records.elements();) {
    const std::int64_t count = records.run(begin, records.elements() - begin);
    Batches batches;
    for (const Run& run : rest_runs(unit, begin, count)) {
      UpdateSlice slice = slice_of(records, bytes, run.begin, run.count);
      slice.gradient = waiting.view(sums, 0, 0, run.begin, run.count);
      batches[run.updates + 1].push_back(std::move(slice));
      use_.on_host += run.count;
    }
    run(stream, unit, factor, batches);
    if (sends) send_record(unit, stream, bytes, begin, count);
    begin += count;
  }
  close(*host_.store, unit.index, records, stream);
  close(*pending_[set_], unit.index, waiting, stream, false);
  for (std::size_t block = 0; block < unit.updates.size(); ++block)
    unit.updates[block] += unit.is_chosen[block] ? 0 : 1;
}

/// The masters' values, those of chosen blocks, which are stale, included: these are written after.
void DelayedUpdates::send(const Unit& unit, Stream& stream) {
  const RecordLayout& records = states(unit);
  const View bytes = open(*host_.store, unit.index, records, stream);
  for (std::int64_t begin = 0; begin < records.elements();) {
    const std::int64_t count = records.run(begin, records.elements() - begin);
    send_record(unit, stream, bytes, begin, count);
    begin += count;
  }
  close(*host_.store, unit.index, records, stream, false);
}

void DelayedUpdates::send_record(const Unit& unit, Stream& stream, const View& bytes,
                                 std::int64_t begin, std::int64_t count) {
  const View piece = host_.pieces->take(stream, count);
  kernels::convert(stream, states(unit).view(bytes, 0, 0, begin, count), piece);
  host_.pieces->send(stream, unit.index, begin);
}

void DelayedUpdates::publish(const Unit& unit) {
  Event written;
  compute_.record(written);
  parameters_.publish(unit.index, written);
}

void DelayedUpdates::update(const UpdateInputs& inputs) {
  const DelayedStep at = delayed_step(options_.settings, inputs.step);
  OffloadedGradients& gradients = *inputs.gradients.offloaded();
  groups_ = inputs.groups;
  use_ = {.chosen = at.selects};
  if (at.selects) select(gradients);
  const bool overlaps = at.ends_round && late_ != nullptr && !at.warms_up;
  const bool sends = at.ends_round && (!overlaps || unsent_);
  const float mean = 1.0f / static_cast<float>(waiting_ + 1);
  if (overlaps) parameters_.begin_step(*late_);
  for (Unit& unit : units_) {
    Staged& staged = staged_[next_staged_++ % kStaged];
    stage(unit, gradients, staged);
    accumulate(unit, gradients, inputs.gradient_factor);
    if (overlaps && sends) send(unit, *late_);
    if (at.ends_round && !overlaps) update_rest(unit, *host_.stream, mean, true);
    if (sends) compute_.wait(host_.pieces->arrived());
    update_chosen(unit, inputs.gradient_factor, staged);
    publish(unit);
  }
  ++waiting_;
  if (at.ends_round) {
    for (Unit& unit : units_)
      if (overlaps) update_rest(unit, *late_, mean, false);
    unsent_ = overlaps;
    waiting_ = 0;
    set_ = (set_ + 1) % pending_.size();
  }
  use_.waiting = waiting_;
}

void DelayedUpdates::flush() {
  bring_home();
  const float mean = 1.0f / static_cast<float>(std::max<std::int64_t>(waiting_, 1));
  for (Unit& unit : units_) {
    if (waiting_ > 0) {
      update_rest(unit, *host_.stream, mean, true);
    } else {
      send(unit, *host_.stream);
    }
    compute_.wait(host_.pieces->arrived());
    publish(unit);
  }
  waiting_ = 0;
  unsent_ = false;
}

}  // namespace zero3d
