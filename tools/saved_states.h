// Opens what a run can be resumed from, whoever wrote it.
#pragma once

#include <memory>
#include <string>

#include "zero3d/engine/checkpoint/saved_state.h"

namespace zero3d::tools {

/// A checkpoint's folder, or the one that `latest` of a folder names. Throws IoError when it is
/// none.
std::unique_ptr<SavedState> open_saved_state(const std::string& folder);

/// Name of the member of client_state that `zero3d train` writes.
inline constexpr const char* kTrainFacts = "zero3d_train";
// What is in it for others: the text of config.json, and the folder or name of --model.
inline constexpr const char* kModelConfig = "model_config";
inline constexpr const char* kModel = "model";
/// What `zero3d train` wrote down under a name; null where it did not write the checkpoint.
const JsonValue* train_fact(const SavedState& saved, const char* name);

}  // namespace zero3d::tools
