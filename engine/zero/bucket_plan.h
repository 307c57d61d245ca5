// How gradients travel: which units share a reduction bucket, where each lies in it, and which
// buffer it uses. A pure function of the layout and the list of operations: two buckets that are
// open at once never share a buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "zero3d/engine/parameter_access.h"
#include "zero3d/engine/schedule.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {

struct BucketOptions {
  std::int64_t bucket_elements = 500'000'000;  ///< A larger part of a block travels alone.
  int buffers = 2;                             ///< 2: one fills while the other is reduced.
};

struct BucketPlan {
  struct Slot {
    int unit = 0;
    std::int64_t offset = 0;  ///< In the bucket's buffer, in elements.
  };
  struct Bucket {
    std::vector<Slot>
        slots;  ///< In the order backward finishes them; the bucket is full when the last one is.
    std::int64_t elements = 0;  ///< Of its padded units.
    /// That of micro-batch m is buffers[m % size]. A tied unit, alive from its first use to its
    /// last or reduced apart, has buffers of its own.
    std::vector<int> buffers;
  };
  std::vector<Bucket> buckets;            ///< In order of completion.
  std::vector<int> bucket_of;             ///< Per unit; -1 for frozen units.
  std::vector<std::int64_t> slot_offset;  ///< Per unit, in its bucket's buffer.
  std::vector<std::int64_t> buffer_elements;
  std::int64_t bucket_elements = 0;     ///< The size in force.
  std::int64_t largest_bucket() const;  ///< Elements.
  std::int64_t total_elements() const;  ///< Of all buffers.
};

/// Whether backward_inputs writes none of the unit's gradients: its slot then opens in
/// backward_weights.
bool opens_in_weights(const ParamLayout& layout, int unit);
/// Where a backward operation writes, per parameter of its block; `gradient_of` is asked for the
/// views of those it may write. Those of other tiles have none.
std::vector<GradientTarget> gradient_targets(
    const ParamLayout& layout, const Op& op,
    const std::function<View(const LayoutParameter& parameter, int index)>& gradient_of);
/// The blocks of a layout, and where their backward stops.
StageBlocks stage_of(const ParamLayout& layout);

/// The size in force is at most a quarter of the trainable elements (but all of one part), so that
/// reduction overlaps backward however small the model is against the knob.
/// No bucket has blocks of two chunks (`ends`: the block after each), whose backward is far apart.
BucketPlan plan_buckets(const ParamLayout& layout, std::span<const Op> ops,
                        const BucketOptions& options, std::span<const int> ends = {});

}  // namespace zero3d
