// Writes a saved state as DeepSpeed lays its checkpoints out, for a number of ranks at ZeRO stage
// 1, 2 or 3: files that its load_checkpoint and its zero_to_fp32.py read. Offline: no rank runs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "zero3d/core/dtype.h"
#include "zero3d/engine/checkpoint/saved_state.h"

namespace zero3d {

struct DeepspeedLayout {
  int zero_stage = 1;
  int ranks = 1;
  DType dtype = DType::f32;  ///< Of the model's weights.
  /// Parameters in the order in which the PyTorch module registers them, each once.
  std::vector<std::string> order;
  std::map<std::string, std::string> aliases;  ///< Other names of tied weights -> names in `order`.
  JsonValue ds_config;                         ///< As the files repeat it.
  double lr = 0;                               ///< Of the next step.
  std::int64_t sub_group = 1'000'000'000;      ///< Of stage 3, elements of a rank.
};

/// Writes folder/global_step<N> and folder/latest; both are made. One parameter group, with the
/// numbers of ds_config's optimizer. Throws Error(kInvalid) for states that are not Adam's, for
/// weights that were left out, and for a tag's folder that is there; IoError.
std::string write_deepspeed_checkpoint(const SavedState& saved, const std::string& folder,
                                       const DeepspeedLayout& layout);

}  // namespace zero3d
