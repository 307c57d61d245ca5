// LLaMA, Mistral, Qwen2, Qwen3 and Gemma as blocks: token embedding, N blocks with RMSNorm,
// grouped-query attention with rotary positions and a gated MLP, final RMSNorm with the head.
// Parameter names and layouts are those of transformers' LlamaForCausalLM and its kin.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/engine/train_settings.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

std::vector<std::unique_ptr<Block>> make_llama_blocks(const ModelConfig& config,
                                                      const TileSettings& tiles);

}  // namespace zero3d
