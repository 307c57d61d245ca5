#include "zero3d/engine/memory_estimate.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/zero/step_report.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/offload/stagger.h"

namespace zero3d {
namespace {

/// Of an array that begins where its colour wants it.
std::int64_t staggered(std::int64_t elements, DType dtype) {
  const std::int64_t bytes = bytes_of(elements, dtype);
  return bytes + Stagger::slack(bytes);
}

void add_parameters(const ParamLayout& layout, const MemoryInputs& inputs,
                    MemoryEstimate& estimate) {
  const ParameterStoreOptions& options = inputs.parameters;
  const bool sharded = options.fetches(layout);
  const ShardPlan shards = plan_shards(layout, options.offload.to, options.dtype);
  std::int64_t& device = estimate[Tier::device][Category::parameters];
  for (int index = 0; index < layout.unit_count(); ++index) {
    const Unit& unit = layout.unit(index);
    const std::int64_t shard = staggered(unit.shard, options.dtype);
    if (sharded && shards.place(index) == ShardPlace::device) device += shard;
    if (sharded && shards.place(index) == ShardPlace::host)
      estimate[options.offload.to.tier()][Category::parameters] += shard;
    if (sharded && shards.place(index) == ShardPlace::drive)
      estimate.drives[Category::parameters] += bytes_of(unit.shard, options.dtype);
    if (!sharded || unit.persistent) {
      device += staggered(unit.padded, options.dtype);
    } else if (inputs.secondary_ranks > 1) {
      device += bytes_of(unit.padded / inputs.secondary_ranks, options.dtype);
    }
  }
  if (sharded && shards.buffer_bytes > 0)
    estimate[Tier::pinned][Category::parameters] +=
        NvmeArrays::buffer_memory(options.offload.to.buffer_count, shards.buffer_bytes);
}

std::int64_t bucket_bytes(const ParamLayout& layout, const BucketPlan& buckets,
                          const MemoryInputs& inputs) {
  if (!inputs.gradients.slots_needed) return 0;
  const std::int64_t bytes = bytes_of(buckets.total_elements(), inputs.parameters.dtype);
  if (!inputs.gradients.reduce_each_micro_batch) return bytes;
  std::int64_t largest = inputs.gradients.partials() * (buckets.largest_bucket() / layout.shards());
  if (all_reduces_copies(inputs.gradients, layout.shards())) largest += buckets.largest_bucket();
  return bytes + bytes_of(largest, DType::f32);
}

}  // namespace

std::int64_t MemoryEstimate::total(std::initializer_list<Tier> tiers) const {
  std::int64_t total = 0;
  for (const Tier tier : tiers) {
    for (const Category category : kAllCategories) total += bytes[tier][category];
  }
  return total;
}

std::string MemoryEstimate::describe(std::initializer_list<Tier> tiers) const {
  std::string text;
  for (const Category category : kAllCategories) {
    std::int64_t held = 0;
    for (const Tier tier : tiers) held += bytes[tier][category];
    if (held > 0) append_item(text, ", ", name_of(category), " ", format_bytes(held));
  }
  return text;
}

std::int64_t MemoryEstimate::total_on_drives() const {
  std::int64_t total = 0;
  for (const Category category : kAllCategories) total += drives[category];
  return total;
}

std::string MemoryEstimate::describe_drives() const {
  MemoryEstimate as_memory;
  as_memory[Tier::device] = drives;
  return as_memory.describe();
}

MemoryEstimate& MemoryEstimate::operator+=(const PerTier<PerCategory<std::int64_t>>& more) {
  for (const Tier tier : {Tier::device, Tier::pinned, Tier::pageable})
    for (const Category category : kAllCategories) bytes[tier][category] += more[tier][category];
  return *this;
}

void MemoryEstimate::require_within(std::int64_t device_budget, std::int64_t host_budget,
                                    const EnoughMemory& enough) const {
  const auto require = [this](std::initializer_list<Tier> tiers, std::int64_t budget,
                              std::int64_t named, const char* place,
                              const std::vector<std::string>& advice) {
    if (budget < 0 || total(tiers) <= budget) return;
    throw OutOfMemory(
        total(tiers), place,
        concat("the plan needs ", format_bytes(total(tiers)), " of each rank's ", place, " (",
               describe(tiers), "), more than its budget of ", format_bytes(budget),
               ": raise it to ", budget_of(std::max(named, total(tiers))), " with --", place,
               "-memory", advice.empty() ? "" : concat(", or need less by ", in_words(advice))));
  };
  require({Tier::device}, device_budget, enough.device, "device", device_advice(habits));
  require(kHostTiers, host_budget, enough.host, "host", host_advice(habits));
}

LateMemory estimate_late_memory(const ParamLayout& layout, const BucketPlan& buckets,
                                const MemoryInputs& inputs) {
  LateMemory late;
  MemoryInputs with_slots = inputs;
  with_slots.gradients.slots_needed = true;
  if (!inputs.gradients.slots_needed) late.buckets = bucket_bytes(layout, buckets, with_slots);
  if (!inputs.gradients.reduce_each_micro_batch) return late;
  for (const Unit& unit : layout.units()) {
    if (!unit.frozen) late.coalesced += bytes_of(unit.padded, inputs.gradients.accumulation_dtype);
  }
  return late;
}

MemoryEstimate estimate_static_memory(const ParamLayout& layout, const BucketPlan& buckets,
                                      const MemoryInputs& inputs) {
  std::int64_t shards = 0;
  std::int64_t gradients = 0;
  for (int index = 0; index < layout.unit_count(); ++index) {
    const Unit& unit = layout.unit(index);
    if (unit.frozen) continue;
    shards += unit.shard;
    const bool leaves =
        !inputs.offloaded.empty() && inputs.offloaded[static_cast<std::size_t>(index)];
    if (leaves && inputs.gradients.shard_accumulators && unit.stages.empty()) continue;
    gradients += staggered(inputs.gradients.shard_accumulators ? unit.shard : unit.padded,
                           inputs.gradients.accumulation_dtype);
  }
  MemoryEstimate estimate;
  PerCategory<std::int64_t>& device = estimate[Tier::device];
  add_parameters(layout, inputs, estimate);
  device[Category::gradients] = gradients;
  device[Category::gradient_buckets] = bucket_bytes(layout, buckets, inputs);
  device[Category::optimizer_states] = inputs.state_bytes;  // masters included
  device[Category::norm_workspace] = bytes_of(shards / kernels::kNormBlock, DType::f64) +
                                     StepReporter::exchange_bytes(inputs.ranks);
  estimate[Tier::pinned][Category::gathered_parameters] = bytes_of(
      ParameterStore::staging_elements(layout, inputs.parameters), inputs.parameters.dtype);
  // What the host reads back: all parts of the exchange, and the last loss.
  estimate[Tier::pinned][Category::other] = StepReporter::exchange_bytes(inputs.ranks);
  return estimate;
}

}  // namespace zero3d
