// Fills a model with a saved state: parameters, masters and the optimizer's states, of each what
// this rank holds, tile by tile, through a few buffers of a record each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zero3d/engine/checkpoint/saved_state.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

struct LoadWhat {
  bool parameters = true;  ///< Else they are there already: the model was made from this state.
  bool states = true;      ///< Of the optimizer.
};

/// What of `saved` does not go with `model`, in words, for all of this rank's parameters: shapes,
/// tensors that are missing, states of another optimizer; "" when nothing. Parameters that were
/// left out because they were frozen keep what they have.
std::string find_mismatch(const SavedState& saved, const ShardedModel& model, const LoadWhat& what);
/// Parameters of `saved` that `names`, those of all ranks, lack.
std::string find_strangers(const SavedState& saved, const std::vector<std::string>& names);

/// Pinned bytes that load_state() takes.
std::int64_t load_bytes(const ZeroPlan& plan);

/// Blocks the host. Collective; for states that find_mismatch has nothing against.
void load_state(const SavedState& saved, ShardedModel& model, const LoadWhat& what);

/// The weights of `saved` as what a model is made from; parameters that were left out come from
/// `others`, which may be null where there are none. Both must outlive it.
std::unique_ptr<ParameterSource> make_saved_source(const SavedState& saved,
                                                   const ParameterSource* others);

}  // namespace zero3d
