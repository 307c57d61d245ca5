// Loops inside a CPU kernel. A task of a CPU stream runs inside its device's TBB arena; a loop here
// spreads over that arena and no further. Which thread runs which chunk varies; results may not
// depend on it, nor on the number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace zero3d {

/// Calls body(begin, end) over [0, count) in chunks of exactly `grain` (the last one smaller). The
/// chunks do not depend on the number of threads, so per-chunk partial results can be combined in
/// index order.
void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

/// The number of threads the current arena may use; 1 outside of one.
int arena_threads();

}  // namespace zero3d
