// Host memory that saving and loading take while they last, for the plan of a run that will do so.
#pragma once

#include <cstdint>

#include "zero3d/engine/zero_plan.h"

namespace zero3d {

/// Which of them a run does.
struct CheckpointUse {
  bool saves = false;
  bool asynchronously = false;  ///< With buffers for all that is saved, where there is room.
  bool loads = false;
};

/// Pinned bytes; `file_bytes`: what this rank saves. `room` is what the plan leaves of the budget
/// of host memory (negative: there is none), which buffers of a save take no more of than they
/// must.
std::int64_t checkpoint_buffers(const ZeroPlan& plan, const CheckpointUse& use,
                                std::int64_t file_bytes, std::int64_t room);
/// With the least that they can do with.
std::int64_t least_checkpoint_buffers(const ZeroPlan& plan, const CheckpointUse& use);

/// Elements of each of the buffers that a load takes: one record of the optimizer's state.
std::int64_t load_buffer_elements(const ZeroPlan& plan);
inline constexpr int kLoadBuffers = 3;

}  // namespace zero3d
