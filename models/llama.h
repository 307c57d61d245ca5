// The LLaMA and Qwen2 families as blocks: token embedding, N blocks with RMSNorm, grouped-query
// attention with rotary positions and SwiGLU, final RMSNorm with the head. Parameter names and
// layouts are those of transformers' LlamaForCausalLM and Qwen2ForCausalLM.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

std::vector<std::unique_ptr<Block>> make_llama_blocks(const ModelConfig& config);

}  // namespace zero3d
