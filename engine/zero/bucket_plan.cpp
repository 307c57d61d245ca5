#include "zero3d/engine/zero/bucket_plan.h"

#include <algorithm>
#include <climits>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>

namespace zero3d {
namespace {

/// Shared by parts, or with another stage: it travels in a bucket of its own.
bool is_tied(const Unit& unit) { return unit.parts.size() > 1 || !unit.stages.empty(); }

/// The trainable units that backward finishes in `part` and no other part shares, last first.
std::vector<int> own_units(const ParamLayout& layout, int part) {
  std::vector<int> units;
  for (int unit : layout.part_units(part)) {
    if (!layout.unit(unit).frozen && !is_tied(layout.unit(unit))) units.insert(units.begin(), unit);
  }
  return units;
}

std::int64_t size_in_force(const ParamLayout& layout, std::int64_t asked) {
  std::int64_t trainable = 0;
  for (const Unit& unit : layout.units()) trainable += unit.frozen ? 0 : unit.padded;
  std::int64_t largest_part = 0;
  for (int part = 0; part < layout.part_count(); ++part) {
    std::int64_t elements = 0;
    for (int unit : own_units(layout, part)) elements += layout.unit(unit).padded;
    largest_part = std::max(largest_part, elements);
  }
  return std::min(asked, std::max(largest_part, trainable / 4));
}

/// Fills buckets in order.
class Packer {
 public:
  explicit Packer(BucketPlan& plan) : plan_(plan) {}

  /// The units of one part share a bucket: backward has all of them open at once.
  void add_part(const ParamLayout& layout, const std::vector<int>& units) {
    std::int64_t elements = 0;
    for (int unit : units) elements += layout.unit(unit).padded;
    if (open_.elements + elements > plan_.bucket_elements) close();
    for (int unit : units) {
      open_.slots.push_back({unit, open_.elements});
      open_.elements += layout.unit(unit).padded;
    }
  }

  void add_alone(int unit, std::int64_t elements) {
    plan_.buckets.push_back({.slots = {{unit, 0}}, .elements = elements, .buffers = {}});
  }

  void close() {
    if (open_.slots.empty()) return;
    plan_.buckets.push_back(std::move(open_));
    open_ = {};
  }

 private:
  BucketPlan& plan_;
  BucketPlan::Bucket open_;
};

/// The operations between which a bucket of one micro-batch holds gradients.
struct Interval {
  int open = INT_MAX;
  int close = -1;
};

/// Buffers that take turns; one more is added when all of them are in use.
class BufferSet {
 public:
  explicit BufferSet(int count) : buffers_(static_cast<std::size_t>(count)) {}

  void restart() { next_ = 0; }
  int take(const Interval& wanted, std::int64_t elements) {
    std::size_t taken = buffers_.size();
    for (std::size_t i = 0; i < buffers_.size() && taken == buffers_.size(); ++i) {
      const std::size_t candidate = (next_ + i) % buffers_.size();
      if (buffers_[candidate].is_free(wanted)) taken = candidate;
    }
    if (taken == buffers_.size()) buffers_.emplace_back();
    buffers_[taken].uses.emplace(wanted.open, wanted.close);
    buffers_[taken].elements = std::max(buffers_[taken].elements, elements);
    next_ = (taken + 1) % buffers_.size();
    return static_cast<int>(taken);
  }
  /// Adds the buffers to the plan's; returns the number of the first.
  int append_to(BucketPlan& plan) const {
    const auto first = static_cast<int>(plan.buffer_elements.size());
    for (const Buffer& buffer : buffers_) plan.buffer_elements.push_back(buffer.elements);
    return first;
  }

 private:
  struct Buffer {
    std::map<int, int> uses;  ///< Ends by beginnings; they never overlap.
    std::int64_t elements = 0;
    bool is_free(const Interval& wanted) const {
      const auto later = uses.upper_bound(wanted.close);  // begins after it
      return later == uses.begin() || std::prev(later)->second < wanted.open;
    }
  };
  std::vector<Buffer> buffers_;
  std::size_t next_ = 0;
};

/// When each bucket of each micro-batch of the list is open.
std::vector<std::vector<Interval>> open_intervals(const ParamLayout& layout,
                                                  std::span<const Op> ops, const BucketPlan& plan) {
  std::vector<std::vector<Interval>> intervals;  // by micro-batch, then bucket
  for (std::size_t index = 0; index < ops.size(); ++index) {
    const Op& op = ops[index];
    if (!is_backward(op.kind)) continue;
    const auto micro = static_cast<std::size_t>(op.micro_batch);
    if (micro >= intervals.size()) {
      intervals.resize(micro + 1, std::vector<Interval>(plan.buckets.size()));
    }
    for (int unit : layout.part_units(layout.part(op.block, op.tile))) {
      const int bucket = plan.bucket_of[static_cast<std::size_t>(unit)];
      if (bucket < 0) continue;
      if (!ends_gradients(op.kind) && opens_in_weights(layout, unit)) continue;
      Interval& interval = intervals[micro][static_cast<std::size_t>(bucket)];
      interval.open = std::min(interval.open, static_cast<int>(index));
      interval.close = std::max(interval.close, static_cast<int>(index));
    }
  }
  return intervals;
}

void assign_buffers(const ParamLayout& layout, std::span<const Op> ops, int shared_buffers,
                    BucketPlan& plan) {
  const std::vector<std::vector<Interval>> intervals = open_intervals(layout, ops, plan);
  BufferSet shared(shared_buffers);
  std::vector<BufferSet> own(plan.buckets.size(), BufferSet(1));
  const auto has_own = [&](const BucketPlan::Bucket& bucket) {
    return is_tied(layout.unit(bucket.slots.front().unit));
  };
  for (const std::vector<Interval>& of_micro_batch : intervals) {
    shared.restart();
    for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
      BucketPlan::Bucket& bucket = plan.buckets[i];
      BufferSet& set = has_own(bucket) ? own[i] : shared;
      bucket.buffers.push_back(set.take(of_micro_batch[i], bucket.elements));
    }
  }
  shared.append_to(plan);
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    std::vector<int>& buffers = plan.buckets[i].buffers;
    if (has_own(plan.buckets[i])) {
      const int first = own[i].append_to(plan);
      for (int& buffer : buffers) buffer += first;
    }
    if (std::adjacent_find(buffers.begin(), buffers.end(), std::not_equal_to<>()) == buffers.end())
      buffers.resize(1);
  }
}

}  // namespace

bool opens_in_weights(const ParamLayout& layout, int unit) {
  const Unit& entry = layout.unit(unit);
  return entry.parts.size() == 1 &&
         std::all_of(entry.parameters.begin(), entry.parameters.end(), [&](int parameter) {
           return layout.parameter(parameter).spec.gradient_in_weights;
         });
}

std::vector<GradientTarget> gradient_targets(
    const ParamLayout& layout, const Op& op,
    const std::function<View(const LayoutParameter&, int)>& gradient_of) {
  const int part = layout.part(op.block, op.tile);
  std::vector<GradientTarget> targets;
  targets.reserve(layout.block_parameters(op.block).size());
  for (const int index : layout.block_parameters(op.block)) {
    const LayoutParameter& parameter = layout.parameter(index);
    GradientTarget& target = targets.emplace_back();
    target.trains = !parameter.spec.frozen;
    if (!target.trains || !parameter.used_in(part)) continue;
    if (!ends_gradients(op.kind) && opens_in_weights(layout, parameter.unit)) continue;
    target.view = gradient_of(parameter, index);
    target.accumulate = part != parameter.parts.back();
  }
  return targets;
}

StageBlocks stage_of(const ParamLayout& layout) {
  StageBlocks stage{layout.block_count(), layout.block_count()};
  for (const LayoutParameter& parameter : layout.parameters()) {
    if (!parameter.spec.frozen)
      stage.backward_down_to = std::min(stage.backward_down_to, parameter.blocks.front());
  }
  return stage;
}

std::int64_t BucketPlan::total_elements() const {
  return std::accumulate(buffer_elements.begin(), buffer_elements.end(), std::int64_t{0});
}

std::int64_t BucketPlan::largest_bucket() const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets) largest = std::max(largest, bucket.elements);
  return largest;
}

BucketPlan plan_buckets(const ParamLayout& layout, std::span<const Op> ops,
                        const BucketOptions& options, std::span<const int> ends) {
  BucketPlan plan;
  plan.bucket_elements = size_in_force(layout, options.bucket_elements);
  Packer packer(plan);
  const auto ends_chunk = [&](int part) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](int end) { return layout.part(end) == part + 1; });
  };
  for (int part = layout.part_count() - 1; part >= 0; --part) {
    if (ends_chunk(part)) packer.close();
    packer.add_part(layout, own_units(layout, part));
    for (int unit : layout.part_units(part)) {
      const Unit& entry =
          layout.unit(unit);  // a tied unit is finished in the first part that uses it
      if (!entry.frozen && is_tied(entry) && entry.parts.front() == part)
        packer.add_alone(unit, entry.padded);
    }
  }
  packer.close();
  plan.bucket_of.assign(layout.units().size(), -1);
  plan.slot_offset.assign(layout.units().size(), 0);
  for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    for (const BucketPlan::Slot& slot : plan.buckets[bucket].slots) {
      plan.bucket_of[static_cast<std::size_t>(slot.unit)] = static_cast<int>(bucket);
      plan.slot_offset[static_cast<std::size_t>(slot.unit)] = slot.offset;
    }
  }
  assign_buffers(layout, ops, options.buffers, plan);
  return plan;
}

}  // namespace zero3d
