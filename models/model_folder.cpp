#include "zero3d/models/model_folder.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/weight_folder.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostLookedAt = 200;  // entries of a folder that may be anybody's

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(path, code);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end;
       !code && it != end && entries.size() < kMostLookedAt; it.increment(code))
    entries.push_back(it->path());
  std::ranges::sort(entries);
  return entries;
}

/// Model folders in a folder or in one of its own, as the Hub's cache and trainers keep them.
std::vector<std::string> models_below(const fs::path& folder) {
  std::vector<std::string> found;
  for (const fs::path& entry : entries_of(folder)) {
    if (is_there(entry / kModelConfigFile)) found.push_back(entry.string());
    for (const fs::path& inner : entries_of(entry))
      if (is_there(inner / kModelConfigFile)) found.push_back(inner.string());
  }
  return found;
}

bool is_checkpoint(const fs::path& folder) {
  if (is_there(folder / "latest") || is_there(folder / "manifest.json")) return true;
  return std::ranges::any_of(entries_of(folder), [](const fs::path& entry) {
    return entry.filename().string().starts_with("global_step") ||
           entry.filename().string().ends_with("_model_states.pt");
  });
}

/// Another case of the letters: who opens the file says so.
bool has_another_case(const fs::path& folder) {
  return std::ranges::any_of(entries_of(folder), [](const fs::path& entry) {
    std::string name = entry.filename().string();
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name == kModelConfigFile;
  });
}

}  // namespace

void refuse_other_folder(const std::string& path) {
  const fs::path folder(path);
  if (is_there(folder / kModelConfigFile) || has_another_case(folder)) return;
  if (is_there(folder / "adapter_config.json"))
    throw IoError(path, 0,
                  "is the folder of an adapter (LoRA), without a config.json; merge the adapter "
                  "into its base model (merge_and_unload) and give the folder of that");
  if (const std::string others = other_weights(path); !others.empty())
    throw IoError(path, 0, concat("has no config.json, and no weights that are read", others));
  std::string advice = "; give a folder as save_pretrained writes it";
  if (const std::vector<std::string> below = models_below(folder); !below.empty())
    advice = concat("; there ", below.size() == 1 ? "is one in " : "are some in ",
                    name_list(below, 3), ": give that folder");
  else if (is_checkpoint(folder))
    advice =
        "; it looks like a checkpoint of a run: give that to --resume, and here the model's folder";
  throw IoError((folder / kModelConfigFile).string(), 0,
                concat("is not there, and a model's folder has one", advice));
}

}  // namespace zero3d
