// Folders of checkpoints: one folder a tag, and the file `latest` that names the last. A new one
// grows under a temporary name and takes its place in one rename, its manifest written last, so
// that at every moment the folder has the old checkpoints, or them and the whole new one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/temporary_path.h"

namespace zero3d {

inline constexpr const char* kLatestName = "latest";

/// The tag of a step whose checkpoint was given none: "global_step12".
std::string tag_of_step(std::int64_t step);
/// Throws Error(kInvalid) for a tag that is no plain name of a folder.
void require_tag(std::string_view tag);
/// The tag that `folder`/latest names; nothing when there is no such file. Throws IoError.
std::optional<std::string> read_latest(const std::string& folder);
/// The folder of one checkpoint: of `tag`, else of the tag that `latest` names, else `folder`
/// itself. Throws IoError when there is none.
std::string find_checkpoint(const std::string& folder, const std::string& tag = "");
/// Whether it holds a manifest of ours.
bool is_checkpoint(const std::string& folder);

/// What one rank makes of a checkpoint that all ranks write to. Not thread-safe.
class CheckpointFolder {
 public:
  /// Makes a temporary folder in `folder`, which is made too where it is not there, and removes,
  /// with a warning, what killed runs have left there. Throws IoError when the tag's folder holds
  /// what is no checkpoint of ours and no part of one.
  CheckpointFolder(std::string folder, std::string tag);

  /// Where ranks write their files.
  const std::string& writing() const { return temporary_->path(); }
  const std::string& target() const { return target_; }
  /// All files are written and durable: writes the manifest, and the checkpoint takes its place;
  /// `latest` names it then if `save_latest`. Throws IoError.
  void commit(const std::string& manifest, bool save_latest);

 private:
  std::string folder_;
  std::string tag_;
  std::string target_;
  std::optional<TemporaryPath> temporary_;
};

/// Removes the oldest checkpoints of steps (tag_of_step) until `keep` are left; never `kept`, nor
/// the one that `latest` names. Throws IoError.
void keep_last(const std::string& folder, int keep, const std::string& kept);

}  // namespace zero3d
