#include "zero3d/engine/zero/bucket_plan.h"

#include <algorithm>

namespace zero3d {
namespace {

/// The trainable units that backward finishes in `block` and no other block shares, last first.
std::vector<int> own_units(const ParamLayout& layout, int block) {
  std::vector<int> units;
  for (int unit : layout.block_units(block)) {
    if (!layout.unit(unit).frozen && layout.unit(unit).blocks.size() == 1)
      units.insert(units.begin(), unit);
  }
  return units;
}

std::int64_t size_in_force(const ParamLayout& layout, std::int64_t asked) {
  std::int64_t trainable = 0;
  for (const Unit& unit : layout.units()) trainable += unit.frozen ? 0 : unit.padded;
  std::int64_t largest_block = 0;
  for (int block = 0; block < layout.block_count(); ++block) {
    std::int64_t elements = 0;
    for (int unit : own_units(layout, block)) elements += layout.unit(unit).padded;
    largest_block = std::max(largest_block, elements);
  }
  return std::min(asked, std::max(largest_block, trainable / 4));
}

/// Fills buckets in order; a full one takes the next shared buffer.
class Packer {
 public:
  Packer(BucketPlan& plan, int buffers) : plan_(plan) {
    plan_.buffer_elements.assign(static_cast<std::size_t>(buffers), 0);
  }

  /// The units of one block share a bucket: backward has all of them open at once, and two buckets
  /// may share a buffer.
  void add_block(const ParamLayout& layout, const std::vector<int>& units) {
    std::int64_t elements = 0;
    for (int unit : units) elements += layout.unit(unit).padded;
    if (open_.elements + elements > plan_.bucket_elements) close();
    for (int unit : units) {
      open_.slots.push_back({unit, open_.elements});
      open_.elements += layout.unit(unit).padded;
    }
  }

  void add_alone(int unit, std::int64_t elements) {
    BucketPlan::Bucket bucket;
    bucket.slots.push_back({unit, 0});
    bucket.elements = elements;
    bucket.buffer = BucketPlan::kOwnBuffer;
    plan_.buckets.push_back(std::move(bucket));
  }

  void close() {
    if (open_.slots.empty()) return;
    open_.buffer = next_buffer_;
    next_buffer_ = (next_buffer_ + 1) % static_cast<int>(plan_.buffer_elements.size());
    auto& size = plan_.buffer_elements[static_cast<std::size_t>(open_.buffer)];
    size = std::max(size, open_.elements);
    plan_.buckets.push_back(std::move(open_));
    open_ = {};
  }

 private:
  BucketPlan& plan_;
  BucketPlan::Bucket open_;
  int next_buffer_ = 0;
};

}  // namespace

std::int64_t BucketPlan::total_elements() const {
  std::int64_t total = 0;
  for (std::int64_t elements : buffer_elements) total += elements;
  for (const Bucket& bucket : buckets) total += bucket.buffer == kOwnBuffer ? bucket.elements : 0;
  return total;
}

std::int64_t BucketPlan::largest_bucket() const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets) largest = std::max(largest, bucket.elements);
  return largest;
}

BucketPlan plan_buckets(const ParamLayout& layout, const BucketOptions& options) {
  BucketPlan plan;
  plan.bucket_elements = size_in_force(layout, options.bucket_elements);
  Packer packer(plan, options.buffers);
  for (int block = layout.block_count() - 1; block >= 0; --block) {
    packer.add_block(layout, own_units(layout, block));
    for (int unit : layout.block_units(block)) {
      const Unit& entry =
          layout.unit(unit);  // a tied unit is finished in the first block that uses it
      if (!entry.frozen && entry.blocks.size() > 1 && entry.blocks.front() == block)
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
  return plan;
}

}  // namespace zero3d
