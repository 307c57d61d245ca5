// When sharded parameters are gathered and released, and where they lie meanwhile: computed before
// the first step from the order of the blocks, the knobs of zero_optimization and the byte budget.
// A pure function; the runner only follows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3d/engine/zero/layout.h"

namespace zero3d {

struct FetchOptions {
  /// stage3_prefetch_bucket_size: gathered ahead of their use at any time; the last unit may
  /// overshoot. 0: no prefetch.
  std::int64_t prefetch_elements = 0;
  /// stage3_max_live_parameters: above it nothing is prefetched or kept for reuse.
  std::int64_t max_live_elements = 0;
  /// stage3_max_reuse_distance: a unit is kept if fewer elements than this are used before it is
  /// used again.
  std::int64_t max_reuse_distance = 0;
  std::int64_t budget_elements = INT64_MAX;  ///< Hard limit of the arena that holds gathered units.
  bool forward_only = false;                 ///< Evaluation.
  int backward_down_to = 0;  ///< Backward stops at this block: those below are frozen.
};

/// A pass is the positions 0..L-1 (forward of block p) and, when training, L..2L-1 (backward of
/// block 2L-1-p).
struct FetchPlan {
  struct Gather {
    int unit = 0;
    int issue = 0;            ///< Enqueued on the gather stream before the work of this position.
    int first_use = 0;        ///< First position that uses it.
    int release = 0;          ///< Given up after the work of this position.
    std::int64_t offset = 0;  ///< Where in the arena, in elements.
  };
  std::vector<Gather> gathers;             ///< In order of issue.
  std::vector<std::vector<int>> issues;    ///< Per position: gathers to issue before it.
  std::vector<std::vector<int>> releases;  ///< Per position: gathers to release after it.
  std::int64_t arena_elements = 0;         ///< Highest end of any gather: the arena's size.
  std::int64_t peak_live_elements = 0;     ///< Most elements gathered at one position.
  std::int64_t gathered_elements = 0;      ///< Sum over gathers: the volume of a pass.
  std::vector<std::string> clipped;        ///< Knobs that the budget cut short, in words.
};

/// The plan for the non-persistent units of `layout`. Throws OutOfMemory when one position's units
/// exceed the budget.
FetchPlan plan_fetches(const ParamLayout& layout, const FetchOptions& options);

/// The block that position `position` of a pass over `blocks` blocks works on.
constexpr int block_at(int position, int blocks) {
  return position < blocks ? position : 2 * blocks - 1 - position;
}

}  // namespace zero3d
