// From a model config to the module the engine runs.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// Embedding, `layers` transformer blocks, head. Throws Error(kInvalid) for a config that
/// validate() refuses. The blocks hold no tensors, so that any size builds at once.
std::unique_ptr<Module> build_model(const ModelConfig& config);

/// Every parameter once, in the order of first declaration (the first one's spec where blocks share
/// it). Throws Error(kInvalid) when two blocks declare one name with different shapes.
std::vector<ParameterSpec> list_parameters(const Module& module);

}  // namespace zero3d
