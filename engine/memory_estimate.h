// What a run needs of each tier of memory, by category, to the byte: a pure function of layout and
// options that the engine itself is held to. Formulas: parameters 2 or 4 bytes, gradients by
// accumulation dtype, masters and moments by theirs, each divided by the number of shards where the
// stage shards it (Rajbhandari et al., arXiv 1910.02054, section 3), with the padding of the
// layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3d/device/memory_kind.h"
#include "zero3d/engine/memory_advice.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/parameter_store.h"

namespace zero3d {

struct MemoryInputs {
  ParameterStoreOptions parameters;
  GradientReducerOptions gradients;
  std::int64_t state_bytes = 0;  ///< Of this rank's records that stay on the device.
  std::vector<bool> offloaded;   ///< By unit: updated on the host. Empty: none is.
  int secondary_ranks = 1;
  int ranks = 1;  ///< Of the whole run.
};

/// Bytes of each rank.
struct EnoughMemory {
  std::int64_t device = 0;
  std::int64_t host = 0;
};

struct MemoryEstimate {
  PerTier<PerCategory<std::int64_t>> bytes;
  PerCategory<std::int64_t> drives;  ///< In files, which no budget bounds.
  MemoryHabits habits;               ///< What the settings do already, for advice.
  PerCategory<std::int64_t>& operator[](Tier tier) { return bytes[tier]; }
  const PerCategory<std::int64_t>& operator[](Tier tier) const { return bytes[tier]; }
  std::int64_t total(std::initializer_list<Tier> tiers = {Tier::device}) const;
  /// "gradients 1.50 GiB, parameters 1.50 GiB".
  std::string describe(std::initializer_list<Tier> tiers = {Tier::device}) const;
  std::int64_t total_on_drives() const;
  std::string describe_drives() const;  ///< The same of what is there.
  /// Bytes of memory; drives and habits stay.
  MemoryEstimate& operator+=(const PerTier<PerCategory<std::int64_t>>& more);
  /// Throws OutOfMemory, naming the plan and the budget, when it is more; a negative budget: none.
  /// `enough`: the budgets to name at least, where other ranks need more.
  void require_within(std::int64_t device_budget, std::int64_t host_budget,
                      const EnoughMemory& enough = {}) const;
};

/// What only some calls ask for, which is taken when the first of them comes.
struct LateMemory {
  std::int64_t buckets = 0;  ///< Device, for windows of more micro-batches than the settings said.
  std::int64_t coalesced = 0;  ///< Device, for whole sums of coalesced micro-batches.
  PerTier<PerCategory<std::int64_t>> exports;  ///< For the host to read or write whole parameters.
};
LateMemory estimate_late_memory(const ParamLayout& layout, const BucketPlan& buckets,
                                const MemoryInputs& inputs);

/// Everything but activations and gathered parameters: what is allocated for the life of the run.
MemoryEstimate estimate_static_memory(const ParamLayout& layout, const BucketPlan& buckets,
                                      const MemoryInputs& inputs);

}  // namespace zero3d
