// Which files a checkpoint folder of DeepSpeed holds, by their names, and where the folder is: the
// names that its save_checkpoint gives (runtime/engine.py, runtime/pipe/module.py) and those of
// ds_to_universal. Internal to formats.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace zero3d {

struct DeepspeedFiles {
  using RankPair = std::pair<int, int>;  ///< In the ZeRO group, and of model parallelism.

  std::string folder;                            ///< The tag's.
  std::map<int, std::string> models;             ///< By model-parallel rank: stages 0 to 2.
  std::map<RankPair, std::string> shard_models;  ///< Stage 3.
  std::map<RankPair, std::string> optimizers;
  std::map<std::pair<int, int>, std::string> layers;  ///< Of pipelines, by layer and tensor rank.
  std::vector<std::string> experts;                   ///< Of mixtures of experts.
  bool universal = false;                             ///< It has a folder "zero" of parameters.

  bool any() const { return universal || !models.empty() || !shard_models.empty(); }
};

/// The files in a tag's folder; any() is false when it is no checkpoint of DeepSpeed.
DeepspeedFiles list_deepspeed_files(const std::string& folder);

/// The tag's folder that `path` means: itself, or the one that its file "latest" or else
/// "latest_universal" names; "" when it is neither. Throws IoError for a tag that leads out of the
/// folder.
std::string find_deepspeed_tag(const std::string& path);

}  // namespace zero3d
