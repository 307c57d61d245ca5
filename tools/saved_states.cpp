#include "saved_states.h"

#include <filesystem>
#include <map>
#include <optional>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/deepspeed_state.h"
#include "zero3d/engine/checkpoint/checkpoint_folder.h"
#include "zero3d/engine/checkpoint/checkpoint_reader.h"

namespace zero3d::tools {

namespace {

std::map<std::string, std::string> renames_of(const std::vector<std::string>& map) {
  std::map<std::string, std::string> renames;
  for (const std::string& pair : map) {
    const std::size_t equals = pair.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == pair.size())
      throw_invalid(concat("--map ", pair,
                           ": expected OLD=NEW, names of the checkpoint and of the "
                           "model"));
    if (!renames.emplace(pair.substr(0, equals), pair.substr(equals + 1)).second)
      throw_invalid(concat("--map names ", pair.substr(0, equals), " twice"));
  }
  return renames;
}

std::unique_ptr<SavedState> open_deepspeed(const std::string& folder, const SavedNames& names) {
  if (names.blocks.empty()) return std::make_unique<DeepspeedState>(folder);
  return std::make_unique<DeepspeedState>(folder, names.blocks, renames_of(names.map));
}

}  // namespace

bool is_of_deepspeed(const std::string& folder) {
  std::error_code code;
  if (is_checkpoint(folder) || !std::filesystem::is_directory(folder, code)) return false;
  const std::optional<std::string> latest = read_latest(folder);
  const bool ours = latest && is_checkpoint((std::filesystem::path(folder) / *latest).string());
  return !ours && is_deepspeed_checkpoint(folder);
}

std::unique_ptr<SavedState> open_saved_state(const std::string& folder, const SavedNames& names) {
  if (is_of_deepspeed(folder)) return open_deepspeed(folder, names);
  const std::string path = find_checkpoint(folder);
  if (!is_checkpoint(path)) {
    throw IoError(path, 0,
                  path == folder
                      ? "has neither a checkpoint nor a file `latest` that names one; give a "
                        "folder that --save wrote, or one of DeepSpeed's checkpoints"
                      : "is no whole checkpoint: it has no zero3d.json; give another one");
  }
  if (!names.map.empty())
    throw_invalid(
        concat("--map is for checkpoints of other programs, and ", path, " is of zero3d"));
  return std::make_unique<CheckpointReader>(path);
}

const JsonValue* train_fact(const SavedState& saved, const char* name) {
  const JsonValue* const facts = saved.run().client_state.find(kTrainFacts);
  return facts == nullptr ? nullptr : facts->find(name);
}

}  // namespace zero3d::tools
