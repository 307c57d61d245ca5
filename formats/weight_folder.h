// The weights of a Hugging Face folder, whatever files they lie in.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/formats/safetensors.h"

namespace zero3d {

/// Weights of a folder in forms that are not read, and what to do about it, as the end of a
/// message: "; 'a.gguf' holds ..."; "" when it has none.
std::string other_weights(const std::string& folder);

/// A folder's weights: model.safetensors, or the shards that model.safetensors.index.json names;
/// without either, pytorch_model.bin or the shards of pytorch_model.bin.index.json; or a single
/// file of these kinds.
class WeightFolder {
 public:
  struct Tensor {
    const SafetensorsEntry* entry;
    const WeightFile* file;
  };

  /// Throws one IoError with every problem of the folder (up to the eighth file that is not
  /// readable): no weights, a damaged or missing shard,
  /// an index that names files outside the folder, a tensor that is in several shards, in none, or
  /// in another than the index says.
  explicit WeightFolder(std::string path);

  const std::string& path() const { return path_; }
  /// By name.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  /// As WeightFile::read, by name.
  void read(std::string_view name, std::int64_t first, const View& dst) const;

 private:
  void open_shards(const std::string& index_path, std::string_view suffix);

  std::string path_;
  std::vector<std::unique_ptr<WeightFile>> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace zero3d
