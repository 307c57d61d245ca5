// From a loaded ds_config to what the engine is told; and DeepSpeed's one call that does all.
#pragma once

#include "zero3d/engine/config/config.h"
#include "zero3d/engine/engine.h"
#include "zero3d/engine/train_settings.h"

namespace zero3d {

/// Throws ConfigError without an optimizer, and for parameters that are no plain values.
TrainSettings train_settings(const Config& config);

/// As DeepSpeed's initialize: a device and an engine on it, trained as `config` says.
TrainingSession initialize(const Config& config, const Module& module, Communicator& world,
                           const EngineOptions& options = {}, int threads = 1);

}  // namespace zero3d
