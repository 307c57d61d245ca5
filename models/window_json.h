// Sliding windows as config.json states them. Internal to models: it names the JSON library.
#pragma once

#include "zero3d/models/json_section.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// Sets config.sliding_window and windowed_layers; family and layers are set already.
void read_window(const JsonSection& file, ModelConfig& config);

/// Whether layer_types, which is there, says what a family that does not read it does anyway.
bool says_only_full_attention(const JsonSection& file, const ModelConfig& config);

}  // namespace zero3d
