// Opens what a run can be resumed from, whoever wrote it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zero3d/engine/checkpoint/saved_state.h"
#include "zero3d/engine/module.h"

namespace zero3d::tools {

/// What names of a checkpoint have to do with those of a model.
struct SavedNames {
  /// The model's, by blocks in order of execution; empty: names are left as they are.
  std::vector<std::vector<ParameterSpec>> blocks;
  std::vector<std::string> map;  ///< Of --map: "OLD=NEW".
};

/// A checkpoint's folder, or the one that `latest` of a folder names: of ours, of DeepSpeed's, or
/// universal. Throws IoError when it is none.
std::unique_ptr<SavedState> open_saved_state(const std::string& folder,
                                             const SavedNames& names = {});

/// Whether that would be one of DeepSpeed's.
bool is_of_deepspeed(const std::string& folder);

/// Name of the member of client_state that `zero3d train` writes.
inline constexpr const char* kTrainFacts = "zero3d_train";
// What is in it for others: the text of config.json, and the folder or name of --model.
inline constexpr const char* kModelConfig = "model_config";
inline constexpr const char* kModel = "model";
inline constexpr const char* kTrainConfig = "ds_config";
/// What `zero3d train` wrote down under a name; null where it did not write the checkpoint.
const JsonValue* train_fact(const SavedState& saved, const char* name);

}  // namespace zero3d::tools
