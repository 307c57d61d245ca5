// The GPT-2 family as blocks: token and position embedding, N blocks with LayerNorm, fused
// attention projection and GELU, final LayerNorm with the (tied) head. Parameter names and layouts
// are those of transformers' GPT2LMHeadModel.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/engine/train_settings.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

std::vector<std::unique_ptr<Block>> make_gpt2_blocks(const ModelConfig& config,
                                                     const TileSettings& tiles);

}  // namespace zero3d
