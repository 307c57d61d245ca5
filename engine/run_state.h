// Where a run is: every number that a step leaves behind beside tensors. One instance, of a
// ShardedModel; whoever needs a field is given it there, and writing it down is all that resuming
// asks for here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "zero3d/optim/loss_scaler.h"

namespace zero3d {

struct RunState {
  std::int64_t steps = 0;            ///< Accumulation windows ended, skipped ones included.
  std::int64_t samples = 0;          ///< Of all ranks in those windows.
  std::int64_t micro_steps = 0;      ///< Calls of Engine::step().
  std::int64_t optimizer_steps = 0;  ///< Updates applied: Adam's bias correction counts them.
  std::int64_t schedule_steps = 0;   ///< Where the learning-rate schedule is.
  std::int64_t skipped_steps = 0;
  std::int64_t consecutive_skips = 0;
  LossScaler::State scaler;
  std::int64_t data_position = 0;  ///< Samples that the caller has taken from its data.
  std::uint64_t seed = 0;          ///< Of dropout and initial values.
  friend bool operator==(const RunState&, const RunState&) = default;
};

/// A line "name = value" for each field; numbers exactly.
std::string to_text(const RunState& state);
/// The inverse: every field once, in any order. Throws Error(kInvalid) naming the line or field
/// that is wrong, missing or negative.
RunState run_state_from_text(std::string_view text);

}  // namespace zero3d
