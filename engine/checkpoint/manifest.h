// The manifest of a checkpoint of ours, zero3d.json: everything but the values themselves. It is
// written last, so that a folder without one is no checkpoint. The reader takes it as hostile.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/engine/checkpoint/piece_map.h"
#include "zero3d/engine/checkpoint/saved_state.h"

namespace zero3d {

struct ManifestFile {
  std::string name;  ///< In the folder of the manifest.
  std::int64_t bytes = 0;
  std::vector<std::uint64_t> sums;  ///< FileSums::chunks().
};

struct CheckpointManifest {
  static constexpr const char* kName = "zero3d.json";
  static constexpr const char* kFormat = "zero3d checkpoint";
  static constexpr int kVersion = 1;

  SavedRun run;
  std::vector<ManifestFile> files;
  std::vector<SavedParameter> parameters;
  /// pieces[i]: of parameters[i], by the name of the tensor.
  std::vector<std::map<std::string, std::vector<Piece>, std::less<>>> pieces;
};

std::string to_text(const CheckpointManifest& manifest);
/// Throws IoError(path) with what is wrong: no JSON, another format or version, members that are
/// missing or of another kind, numbers out of range, pieces outside their file or tensor, names of
/// files that are no plain names.
CheckpointManifest parse_manifest(const std::string& path, std::string_view text);

/// "none", "fixed", "dynamic".
std::string_view name_of(SavedScale scale);
/// The inverse of name_of(DType); throws Error(kInvalid).
DType dtype_from_name(std::string_view name);

}  // namespace zero3d
