// Which meshes a model's layers can be cut over.
#pragma once

#include <string>
#include <vector>

#include "zero3d/models/model_config.h"
#include "zero3d/parallel/topology.h"

namespace zero3d {

/// What of the model the degrees cannot cut, a sentence each, with the degrees that would work.
/// Attention is cut by heads, each rank with as many; key and value heads that are fewer than ranks
/// are shared. Ranks that share sequences (sp) divide the heads of a tensor-parallel rank likewise.
/// Vocabularies and the MLP's width may be uneven: the last ranks hold less.
std::vector<std::string> mesh_problems(const ModelConfig& config, const GridDegrees& degrees);

}  // namespace zero3d
