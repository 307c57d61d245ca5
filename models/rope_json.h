// Rotary positions as config.json states them, in every spelling of it. Internal to models: it
// names the JSON library.
#pragma once

#include "zero3d/models/json_section.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// rope_parameters (transformers 5), or rope_theta and rope_scaling at the top; where a file has
/// both dicts, rope_scaling is meant, as transformers takes it. Keys without an effect become
/// config.remarks. config.max_positions and head_dim are set already.
RopeConfig read_rope(const JsonSection& file, ModelConfig& config);

/// The dict of rope_parameters; keys of the one in `source` that say nothing are kept.
ConfigJson rope_json(const RopeConfig& rope, const ConfigJson& source);

}  // namespace zero3d
