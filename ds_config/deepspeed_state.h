// A checkpoint that DeepSpeed wrote as what a run is resumed from.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/engine/checkpoint/saved_state.h"
#include "zero3d/engine/module.h"
#include "zero3d/formats/deepspeed_checkpoint.h"

namespace zero3d {

class DeepspeedState final : public SavedState {
 public:
  /// With the names that the checkpoint has: to look at. Throws IoError.
  explicit DeepspeedState(const std::string& path);
  /// With the names of a model whose `blocks` declare parameters in order of execution; `renames`
  /// as match_names takes them. Throws IoError naming what could not be matched.
  DeepspeedState(const std::string& path, const std::vector<std::vector<ParameterSpec>>& blocks,
                 const std::map<std::string, std::string>& renames);

  const std::string& path() const override { return path_; }
  const SavedRun& run() const override { return run_; }
  void read(const SavedParameter& parameter, std::string_view tensor,
            std::span<const GlobalRun> runs, const View& dst) const override;
  void verify() const override { checkpoint_.verify(); }
  /// What is there and is not read, and names that rest on their order alone.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  SavedParameter entry_of(const DeepspeedParameter& parameter) const;
  void read_run();

  DeepspeedCheckpoint checkpoint_;
  std::string path_;
  SavedRun run_;
  std::map<std::string, const DeepspeedParameter*> sources_;  ///< By the names of parameters().
  std::vector<std::string> remarks_;
};

}  // namespace zero3d
