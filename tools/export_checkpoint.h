// zero3d export: a checkpoint as a Hugging Face model folder, or as DeepSpeed lays its checkpoints
// out; without any device and without the whole model in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/engine/checkpoint/saved_state.h"
#include "zero3d/models/model_config.h"

namespace zero3d::tools {

struct ExportOptions {
  std::string checkpoint;
  std::string out;
  std::string model;  ///< Folder of config.json and tokenizer; "": as the checkpoint says.
  std::string dtype;  ///< "": what the run trained in.
  std::string max_shard;
  std::vector<std::string> map;  ///< "OLD=NEW".
  bool deepspeed = false;        ///< DeepSpeed's layout, of so many ranks at a ZeRO stage.
  int ranks = 1;
  int zero_stage = 0;  ///< 0: that of the run.
  std::string config;  ///< A ds_config file; "": that of the run.
};
/// What an export reads.
struct ExportSource {
  std::unique_ptr<SavedState> saved;  ///< By the names of the model.
  ModelConfig model;
};
void export_checkpoint(const ExportOptions& options);
void export_deepspeed(const ExportOptions& options, const ExportSource& source);

}  // namespace zero3d::tools
