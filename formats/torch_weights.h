// A file of weights as torch.save writes a module's state: a dict of names and tensors.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/formats/safetensors.h"
#include "zero3d/formats/torch_archive.h"

namespace zero3d {

class TorchWeightFile final : public WeightFile {
 public:
  /// Throws IoError for a file that is damaged or holds something else than names and tensors.
  explicit TorchWeightFile(std::string path);

  const std::string& path() const override { return archive_.path(); }
  const std::vector<SafetensorsEntry>& tensors() const override { return tensors_; }
  void read(const SafetensorsEntry& entry, std::int64_t first, const View& dst) const override;

 private:
  TorchArchive archive_;
  std::vector<SafetensorsEntry> tensors_;
  std::map<std::string_view, const PickleTensor*> sources_;  ///< By the names in tensors_.
};

}  // namespace zero3d
