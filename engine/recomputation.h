// Which blocks of a step compute their forward again before their backward, so that between the
// two only some blocks' inputs are kept: a change of the step's list of operations, made before
// anything is planned over it.
#pragma once

#include <span>
#include <vector>

#include "zero3d/engine/schedule.h"

namespace zero3d {

/// The blocks of each chunk are taken in groups; of a group the inputs of its first block are kept.
/// The model's last block is in none (its backward follows its forward), nor are frozen ones below
/// the first that trains.
struct RecomputationSettings {
  int interval = 0;  ///< Blocks of a group; 0: `groups` says.
  int groups = 0;    ///< So many groups, as equal as they can be; 0: nothing is computed again.
};

/// The first block of each group, ascending. A group ends where the next begins, or its chunk does.
std::vector<int> recomputed_groups(const StageBlocks& stage, const RecomputationSettings& settings);

/// `ops`, a step, with its forward operations keeping what the settings say, and the group computed
/// again right before the backward of its last block. Inputs kept on the host are fetched one group
/// ahead: when the group whose backward comes before is about to be computed again, a chunk's first
/// when its backward begins or its gradients are awaited. A list that says itself what is computed
/// again is left as it is.
std::vector<Op> with_recomputation(std::span<const Op> ops, const StageBlocks& stage,
                                   const RecomputationSettings& settings, bool inputs_on_host);

}  // namespace zero3d
