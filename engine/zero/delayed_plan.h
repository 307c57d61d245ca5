// Which step of a run with delayed updates does what, and which blocks of a shard are updated at
// every step: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zero3d/engine/delayed_update_settings.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {

struct DelayedStep {
  bool warms_up = false;    ///< Everything is updated, and nothing is left under way.
  bool selects = false;     ///< The blocks of the device are chosen by this step's gradients.
  bool ends_round = false;  ///< The rest is updated.
};
/// Of the applied step with this number, from 1. Choices come at the first step of a round.
DelayedStep delayed_step(const DelayedUpdateSettings& settings, std::int64_t step);

/// By unit: the most blocks that choose_blocks() gives on any rank; 0 where not `offloaded`.
std::vector<std::int64_t> most_chosen(const ParamLayout& layout, const std::vector<bool>& offloaded,
                                      double share);

/// Of each parameter's blocks of ParamLayout::kAlignment elements in the shard: `share`, rounded
/// up, those with the largest sums of squares, of equal ones the first. Ascending numbers within
/// the shard; blocks of padding alone are not chosen. `squares`: by block of the shard; one that is
/// no number counts as infinite.
std::vector<std::int64_t> choose_blocks(const ParamLayout& layout, int unit, int shard_rank,
                                        double share, std::span<const double> squares);

}  // namespace zero3d
