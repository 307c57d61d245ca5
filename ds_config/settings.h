// From a ds_config to what the engine is told; and DeepSpeed's one call that does all.
#pragma once

#include <string_view>
#include <vector>

#include "zero3d/ds_config/config.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/engine/engine.h"
#include "zero3d/engine/train_settings.h"

namespace zero3d {

/// What the engine is told, and what of the configuration cannot be said to it: no optimizer,
/// parameters that are no plain values, numbers beyond the engine's. Settings that have problems
/// are not to be used.
struct ReadSettings {
  TrainSettings settings;
  std::vector<ConfigMessage> problems;
};
ReadSettings read_settings(const Config& config);
/// The settings alone; throws ConfigError with all problems.
TrainSettings train_settings(const Config& config);

/// Of a file, or of JSON text (see load_config), for `ranks` ranks. Throws ConfigError with
/// everything that is wrong with it, or that zero3d does not implement and that changes results.
TrainSettings load_settings(std::string_view source, int ranks);

/// As DeepSpeed's initialize: an engine, and a device for it, that trains as the ds_config `source`
/// says.
TrainingSession initialize(std::string_view source, const Module& module, Communicator& world,
                           const EngineOptions& options = {}, int threads = 1,
                           DeviceChoice device = DeviceChoice::cpu);

}  // namespace zero3d
