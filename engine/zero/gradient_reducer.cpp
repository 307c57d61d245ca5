#include "zero3d/engine/zero/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d {

bool all_reduces_copies(const GradientReducerOptions& options, int shards) {
  const bool all_fp32 =
      options.gradient_dtype == DType::f32 && options.accumulation_dtype == DType::f32;
  return !options.reduce_scatter && shards > 1 && options.reduce_each_micro_batch && !all_fp32;
}

GradientReducer::GradientReducer(Device& device, const ParamLayout& layout, const BucketPlan& plan,
                                 ZeroGroups& groups, const GradientReducerOptions& options,
                                 const RankStreams& streams, OffloadedGradients* offloaded)
    : device_(device),
      layout_(layout),
      plan_(plan),
      groups_(groups),
      options_(options),
      compute_(*streams.compute),
      reduce_(*streams.reduce),
      offloaded_(offloaded),
      buffers_(device, plan, options.gradient_dtype, compute_),
      units_(layout.units().size()),
      buckets_(plan.buckets.size()) {
  take_memory();
  allocate_square_sums();
}

void GradientReducer::take_memory() {
  for (const BucketPlan::Bucket& bucket : plan_.buckets) {
    for (const BucketPlan::Slot& slot : bucket.slots) {
      const Unit& unit = layout_.unit(slot.unit);
      if (options_.shard_accumulators && passes_on(slot.unit)) continue;
      state(slot.unit).accumulator =
          StaggeredTensor(device_.memory(), options_.accumulation_dtype,
                          options_.shard_accumulators ? unit.shard : unit.padded,
                          Category::gradients, ArrayColour::gradient);
    }
  }
  if (!options_.slots_needed) return;
  buffers_.allocate();
  if (!options_.reduce_each_micro_batch) return;
  if (all_reduces_copies(options_, layout_.shards())) {
    all_reduced_ = Tensor(device_.memory(), kNoStream, DType::f32, Shape{plan_.largest_bucket()},
                          Category::gradient_buckets);
  }
  for (int i = 0; i < options_.partials(); ++i) {
    partials_.push_back(
        {Tensor(device_.memory(), kNoStream, DType::f32,
                Shape{plan_.largest_bucket() / layout_.shards()}, Category::gradient_buckets)});
  }
}

void GradientReducer::release_memory() {
  for (UnitState& unit : units_) {
    unit.accumulator = {};
    unit.coalesced.reset();
  }
  for (BucketState& bucket : buckets_) bucket = {};
  running_.clear();
  buffers_.release();
  all_reduced_.reset();
  partials_.clear();
  next_partial_ = 0;
}

void GradientReducer::allocate_square_sums() {
  std::int64_t blocks = 0;
  for (const Unit& unit : layout_.units())
    if (!unit.frozen) blocks += unit.shard / kernels::kNormBlock;
  square_sums_ =
      Tensor(device_.memory(), kNoStream, DType::f64, Shape{blocks}, Category::norm_workspace);
  blocks = 0;
  for (int unit = 0; unit < layout_.unit_count(); ++unit) {
    if (layout_.unit(unit).frozen) continue;
    const std::int64_t count = layout_.unit(unit).shard / kernels::kNormBlock;
    state(unit).square_sums = square_sums_.view().flat(blocks, count);
    blocks += count;
  }
}

void GradientReducer::begin_backward(int micro_batch, bool last) {
  if (micro_batch > 0 && !options_.slots_needed) {  // more than the settings said
    buffers_.allocate();
    options_.slots_needed = true;
  }
  std::erase_if(running_, [&](auto& entry) {  // given up
    if (micro_batch != 0 && entry.first != micro_batch) return false;
    for (GradientBuffers::Buffer* buffer : entry.second.buffers)
      if (buffer != nullptr) buffers_.give_back(*buffer);
    return true;
  });
  for (BucketState& bucket : buckets_) {
    bucket.reduced = false;
    if (micro_batch == 0) bucket.filled = false;
  }
  ended_ = last;
  Backward backward;
  backward.last = last;
  backward.open.resize(units_.size());
  backward.buffers.resize(buckets_.size());
  backward.buckets = plan_.buckets.size();
  for (const BucketPlan::Bucket& bucket : plan_.buckets)
    backward.waiting.push_back(static_cast<int>(bucket.slots.size()));
  running_.emplace(micro_batch, std::move(backward));
}

GradientReducer::Backward& GradientReducer::running(int micro_batch) {
  const auto found = running_.find(micro_batch);
  if (found == running_.end())
    throw_invalid(concat("gradients of micro-batch ", micro_batch, " without begin_backward()"));
  return found->second;
}

/// The first micro-batch's gradient can be written straight into the accumulator when that is whole
/// and of its dtype.
bool GradientReducer::writes_in_place(int micro_batch) const {
  return micro_batch == 0 && !options_.reduce_each_micro_batch &&
         options_.gradient_dtype == options_.accumulation_dtype;
}

View GradientReducer::slot(int unit, int micro_batch) {
  const auto index = static_cast<std::size_t>(unit);
  if (writes_in_place(micro_batch)) return state(unit).accumulator.view();
  const auto bucket = static_cast<std::size_t>(plan_.bucket_of[index]);
  GradientBuffers::Buffer*& buffer = running(micro_batch).buffers[bucket];
  if (buffer == nullptr) buffer = &buffers_.take(bucket, micro_batch);
  return buffer->storage.view().flat(plan_.slot_offset[index], layout_.unit(unit).padded);
}

View GradientReducer::open(int unit, int micro_batch) {
  const auto index = static_cast<std::size_t>(unit);
  View& open = running(micro_batch).open[index];
  if (open.defined()) return open;
  open = slot(unit, micro_batch);
  for (const auto& [begin, end] : layout_.gaps(unit)) {
    device_.fill_zero(compute_, open.flat(begin, end - begin));
  }
  return open;
}

void GradientReducer::ready(int unit, int micro_batch) {
  const auto index = static_cast<std::size_t>(unit);
  const auto bucket = static_cast<std::size_t>(plan_.bucket_of[index]);
  Backward& backward = running(micro_batch);
  if (!backward.open[index].defined())
    throw_invalid(concat("the gradients of ", layout_.unit(unit).name,
                         " are said to be written, but nobody has asked where to"));
  backward.open[index] = View();
  if (--backward.waiting[bucket] > 0) return;
  flush(bucket, micro_batch, backward.last);
  if (--backward.buckets == 0) running_.erase(micro_batch);
}

void GradientReducer::flush(std::size_t index, int micro_batch, bool last) {
  Event written;
  compute_.record(written);
  reduce_.wait(written);
  if (options_.reduce_each_micro_batch && coalescing_) {
    add_up(index, micro_batch);
  } else if (options_.reduce_each_micro_batch) {
    reduce_into_shards(index, micro_batch, last);
  } else {
    if (!writes_in_place(micro_batch)) add_up(index, micro_batch);
    if (last) reduce_accumulated(index);
  }
  if (GradientBuffers::Buffer* buffer =
          std::exchange(running(micro_batch).buffers[index], nullptr)) {
    reduce_.record(buffer->free);
    buffers_.give_back(*buffer);
  }
  if (last && !coalescing_ && !is_shared_bucket(index)) complete(index);
}

/// Adds a bucket's gradients of a micro-batch to what is coalesced, or to the whole accumulators;
/// the first are written.
void GradientReducer::add_up(std::size_t index, int micro_batch) {
  const bool coalesces = options_.reduce_each_micro_batch;
  const bool first = coalesces ? !buckets_[index].coalesced : micro_batch == 0;
  for (const BucketPlan::Slot& entry : plan_.buckets[index].slots) {
    const UnitState& unit = state(entry.unit);
    const View sum = coalesces ? unit.coalesced.view() : unit.accumulator.view();
    const View gradient = slot(entry.unit, micro_batch);
    if (first) {
      kernels::convert(reduce_, gradient, sum);
    } else {
      kernels::add(reduce_, gradient, sum);
    }
  }
  buckets_[index].coalesced = coalesces;
}

void GradientReducer::reduce_accumulated(std::size_t index) {
  const BucketPlan::Bucket& bucket = plan_.buckets[index];
  std::vector<ReduceSegment> segments;
  for (const BucketPlan::Slot& entry : bucket.slots) {
    segments.push_back({state(entry.unit).accumulator.view(), reduced(entry.unit)});
  }
  sum_over_ranks(bucket, segments);
}

/// Sums one bucket's gradients of this micro-batch, or of those coalesced, over the ranks into the
/// shards' accumulators.
void GradientReducer::reduce_into_shards(std::size_t index, int micro_batch, bool last) {
  const BucketPlan::Bucket& bucket = plan_.buckets[index];
  const bool first = !buckets_[index].filled;
  Partial& partial = partials_[next_partial_++ % partials_.size()];
  if (partial.taken.recorded()) reduce_.wait(partial.taken);
  // The first sums are rounded to what they add up in; others are added first.
  const View passing(partial.storage.view().data(),
                     first ? options_.accumulation_dtype : DType::f32, partial.storage.shape());
  std::vector<ReduceSegment> segments;
  std::int64_t offset = 0;
  for (const BucketPlan::Slot& entry : bucket.slots) {
    const std::int64_t shard = layout_.unit(entry.unit).shard;
    const Tensor& coalesced = state(entry.unit).coalesced;
    const View source =
        buckets_[index].coalesced ? coalesced.view() : slot(entry.unit, micro_batch);
    const bool passes = !first || passes_on(entry.unit);
    segments.push_back({source, passes ? passing.flat(offset, shard) : reduced(entry.unit)});
    offset += shard;
  }
  sum_over_ranks(bucket, segments);
  buckets_[index].filled = true;
  Event summed;
  if (offloaded_ != nullptr) reduce_.record(summed);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const int unit = bucket.slots[i].unit;
    if (passes_on(unit)) {
      partial.taken = offloaded_->add(unit, segments[i].shard, summed, first, last);
    } else if (!first) {
      kernels::add(reduce_, segments[i].shard, reduced(unit));
    }
  }
}

void GradientReducer::begin_coalescing() {
  for (const BucketPlan::Bucket& bucket : plan_.buckets) {
    if (!options_.reduce_each_micro_batch) break;  // whole already, and reduced at the window's end
    for (const BucketPlan::Slot& entry : bucket.slots) {
      Tensor& sum = state(entry.unit).coalesced;
      if (sum.defined()) continue;
      sum = Tensor(device_.memory(), reduce_, options_.accumulation_dtype,
                   Shape{layout_.unit(entry.unit).padded}, Category::gradients);
    }
  }
  coalescing_ = true;
}

void GradientReducer::end_coalescing() {
  coalescing_ = false;
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    if (!buckets_[index].coalesced) continue;
    reduce_into_shards(index, 0, false);  // what is coalesced, whatever the micro-batch
    buckets_[index].coalesced = false;
  }
}

/// Sum over the shard group, then over the replicas; the mean's divisor is applied where the
/// options say, once. Then over tensor-parallel ranks that wrote parts of the same. A segment for
/// each slot of `bucket`.
void GradientReducer::sum_over_ranks(const BucketPlan::Bucket& bucket,
                                     const std::vector<ReduceSegment>& segments) {
  const double ranks = options_.mean ? groups_.data_parallel : 1.0;
  const double before = options_.prescale ? ranks : options_.predivide_factor;
  ReduceOptions first;
  first.wire = options_.wire;
  first.scale_in = static_cast<float>(1.0 / before);
  ReduceOptions second;
  second.wire = options_.wire;
  const bool replicated = groups_.replica->size() > 1;
  (replicated ? second : first).scale_out = static_cast<float>(before / ranks);
  reduce_to_shards(segments, first);
  if (replicated) {
    for (const ReduceSegment& segment : segments)
      groups_.replica->all_reduce(reduce_, segment.shard, second);
  }
  ReduceOptions parts;
  parts.wire = options_.wire;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Unit& unit = layout_.unit(bucket.slots[i].unit);
    if (unit.sums_holders)
      groups_.holders.at(unit.holders)->all_reduce(reduce_, segments[i].shard, parts);
  }
}

void GradientReducer::reduce_to_shards(const std::vector<ReduceSegment>& segments,
                                       const ReduceOptions& options) {
  if (options_.reduce_scatter || layout_.shards() == 1)
    return groups_.shard->reduce_scatter(reduce_, segments, options);
  std::int64_t offset = 0;
  for (const ReduceSegment& segment : segments) {
    const std::int64_t elements = segment.full.numel();
    View whole(const_cast<std::byte*>(segment.full.data()), segment.full.dtype(),
               Shape{elements});                   // ours, as a slot or accumulator
    if (whole.dtype() != segment.shard.dtype()) {  // rounded once, as a reduce-scatter's result is
      const View copy = all_reduced_.view().flat(offset, elements);
      kernels::convert(reduce_, whole, copy);
      whole = copy;
      offset += elements;
    }
    groups_.shard->all_reduce(reduce_, whole, options);
    const View mine =
        whole.flat(groups_.shard->rank() * segment.shard.numel(), segment.shard.numel());
    if (mine.data() != segment.shard.data()) kernels::convert(reduce_, mine, segment.shard);
  }
}

/// The bucket's gradients of the window are reduced: the norm's first level, while they are near.
void GradientReducer::complete(std::size_t index) {
  for (const BucketPlan::Slot& entry : plan_.buckets[index].slots) {
    if (!leaves(entry.unit)) {
      sum_squares(reduce_, entry.unit);
    } else if (options_.reduce_each_micro_batch && passes_on(entry.unit)) {
      offloaded_->require_square_sums(entry.unit);
    } else {  // the window's, all at once
      Event summed;
      reduce_.record(summed);
      offloaded_->add(entry.unit, reduced(entry.unit), summed, true, true);
    }
  }
  reduce_.record(buckets_[index].done);
  buckets_[index].reduced = true;
  if (!then_) return;
  for (const BucketPlan::Slot& entry : plan_.buckets[index].slots)
    if (leaves(entry.unit)) then_(entry.unit);
}

void GradientReducer::finish(Stream& stream) {
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    if (buckets_[index].reduced) continue;
    // The caller may have ended the window after the fact.
    if (!ended_ && !options_.reduce_each_micro_batch) reduce_accumulated(index);
    if (!is_shared_bucket(index)) complete(index);
  }
  sum_over_stages();
  for (const BucketState& bucket : buckets_) stream.wait(bucket.done);
  collect_square_sums(stream);
}

/// In the model's order, the same on all stages. Not before: a stage would wait here for stages
/// that may wait for its backward.
void GradientReducer::sum_over_stages() {
  for (int unit = 0; unit < layout_.unit_count(); ++unit) {
    if (layout_.unit(unit).frozen || !is_shared(unit)) continue;
    groups_.tied.at(layout_.unit(unit).stages)->all_reduce(reduce_, reduced(unit), {});
    complete(static_cast<std::size_t>(plan_.bucket_of[static_cast<std::size_t>(unit)]));
  }
}

/// Those of offloaded units join the others on the device.
void GradientReducer::collect_square_sums(Stream& stream) {
  if (offloaded_ == nullptr) return;
  offloaded_->join(stream);
  for (int unit = 0; unit < layout_.unit_count(); ++unit)
    if (leaves(unit)) offloaded_->copy_square_sums(stream, unit, state(unit).square_sums);
}

void GradientReducer::sum_squares(Stream& stream, int unit) {
  if (options_.square_sums) kernels::square_sums(stream, reduced(unit), state(unit).square_sums);
}

void GradientReducer::refresh_square_sums(Stream& stream) {
  for (const BucketPlan::Bucket& bucket : plan_.buckets)
    for (const BucketPlan::Slot& entry : bucket.slots) {
      if (leaves(entry.unit)) {
        offloaded_->require_square_sums(entry.unit);
      } else {
        sum_squares(stream, entry.unit);
      }
    }
  collect_square_sums(stream);
}

void GradientReducer::copy_reduced(Stream& stream, int unit, const View& into) {
  if (!leaves(unit)) return device_.copy(stream, into, reduced(unit));
  offloaded_->join(stream);
  offloaded_->copy(stream, unit, into);
}

View GradientReducer::reduced(int unit) {
  const View accumulator = state(unit).accumulator.view();
  if (options_.shard_accumulators) return accumulator;
  const std::int64_t shard = layout_.unit(unit).shard;
  return accumulator.flat(groups_.shard->rank() * shard, shard);
}

}  // namespace zero3d
