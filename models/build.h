// From a model config to the module the engine runs.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/engine/train_settings.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// Embedding, `layers` transformer blocks, head. Throws Error(kInvalid) for a config that
/// validate() refuses. The blocks hold no tensors, so that any size builds at once.
///
/// `tiles` cuts blocks (0 there as 1): embedding and head by the vocabulary, each linear layer of
/// the others by its outputs. Results are those of the uncut model but for the rounding of the sums
/// over tiles.
std::unique_ptr<Module> build_model(const ModelConfig& config, const TileSettings& tiles = {});

/// Every parameter once, in the order of first declaration (the first one's spec where blocks share
/// it), whole. Throws Error(kInvalid) when two blocks declare one name with different shapes.
std::vector<ParameterSpec> list_parameters(const Module& module);

}  // namespace zero3d
