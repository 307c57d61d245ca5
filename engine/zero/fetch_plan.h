// When sharded parameters are gathered and released, and where they lie meanwhile: computed before
// the first step from the list of operations, the knobs of its options and the byte budget. A
// pure function; the runner only follows it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zero3d/engine/schedule.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {

struct FetchOptions {
  /// Gathered ahead of their use at any time; the last unit may overshoot. 0: no prefetch.
  std::int64_t prefetch_elements = 0;
  /// Above it nothing is prefetched or kept for reuse.
  std::int64_t max_live_elements = 0;
  /// A unit is kept if fewer elements than this are used before it is used again.
  std::int64_t max_reuse_distance = 0;
  std::int64_t budget_elements = INT64_MAX;  ///< Hard limit of the arena that holds gathered units.
};

/// A position is an index into `ops`.
struct FetchPlan {
  struct Gather {
    int unit = 0;
    int issue = 0;            ///< Enqueued on the gather stream before the work of this position.
    int first_use = 0;        ///< First position that uses it.
    int release = 0;          ///< Given up after the work of this position.
    std::int64_t offset = 0;  ///< Where in the arena, in elements.
  };
  std::vector<Op> ops;                     ///< What it was made for.
  std::vector<Gather> gathers;             ///< In order of issue.
  std::vector<std::vector<int>> issues;    ///< Per position: gathers to issue before it.
  std::vector<std::vector<int>> releases;  ///< Per position: gathers to release after it.
  std::int64_t arena_elements = 0;         ///< Highest end of any gather: the arena's size.
  std::int64_t peak_live_elements = 0;     ///< Most elements gathered at one position.
  std::int64_t gathered_elements = 0;      ///< Sum over gathers: the volume of the list.
  std::vector<std::string> clipped;        ///< Knobs that the budget cut short, in words.
};

/// The plan for the non-persistent units of `layout`. Throws OutOfMemory when one operation's units
/// exceed the budget.
FetchPlan plan_fetches(const ParamLayout& layout, std::span<const Op> ops,
                       const FetchOptions& options);

}  // namespace zero3d
