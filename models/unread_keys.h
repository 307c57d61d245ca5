// What of a config.json nobody reads. Internal to models: it names the JSON library.
#pragma once

#include "zero3d/models/json_section.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// Names the keys that nothing has asked for in one of config.remarks, but for those that are known
/// to say nothing about the arithmetic. Called when everything else of the file is read.
void remark_unread_keys(const JsonSection& file, ModelConfig& config);

}  // namespace zero3d
