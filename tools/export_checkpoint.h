// zero3d export: a checkpoint as a Hugging Face model folder, without any device and without the
// whole model in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zero3d::tools {

struct ExportOptions {
  std::string checkpoint;
  std::string out;
  std::string model;  ///< Folder of config.json and tokenizer; "": as the checkpoint says.
  std::string dtype;  ///< "": what the run trained in.
  std::string max_shard;
  std::vector<std::string> map;  ///< "OLD=NEW".
};
void export_checkpoint(const ExportOptions& options);

}  // namespace zero3d::tools
