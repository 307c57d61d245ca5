// What `zero3d train` writes down of a run beside its state, and what it holds a run to that goes
// on from there: the data, the model's shape, and who wins where the two say different things.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "train_options.h"
#include "zero3d/engine/checkpoint/checkpoint.h"
#include "zero3d/engine/checkpoint/saved_state.h"
#include "zero3d/engine/module.h"
#include "zero3d/models/model_config.h"

namespace zero3d::tools {

struct TrainPlan;

/// What --override takes, and whose word each then is: of the first, the checkpoint's rather than
/// the configuration's; of the others, the other way round.
inline constexpr const char* kConfigKeys[] = {"lr", "clipping", "batch", "schedule"};
inline constexpr const char* kRunKeys[] = {"steps", "moments", "scaler", "data", "seed"};

/// The checkpoint that --resume names; null without one, and for "latest" where --save has none
/// yet. Throws IoError.
std::unique_ptr<SavedState> open_resumed(const TrainRequest& request, const ModelConfig& model);

/// The text of the configuration with what --override takes from the checkpoint; as it is without.
std::string overridden_config(const TrainRequest& request, const SavedState& saved,
                              const std::string& text);

/// What each block declares, in order of execution.
std::vector<std::vector<ParameterSpec>> blocks_of(const ModelConfig& model);

/// Throws Error(kInvalid) for another model.
void require_same_model(const SavedState& saved, const std::vector<ParameterSpec>& parameters);
/// The same for other data, or samples of another length or order.
void require_same_data(const TrainPlan& plan);

/// What goes into client_state, and comes back from it.
JsonValue run_facts(const TrainPlan& plan);

LoadCheckpointOptions resume_options(const TrainRequest& request);

}  // namespace zero3d::tools
