// Into how many tiles a model's layers are cut where the configuration leaves it open: as few as
// the device's budget asks for.
#pragma once

#include <cstdint>

#include "zero3d/engine/engine.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// settings.tiles with numbers for 0: 1 where there is no budget (negative), where the plan fits
/// `device_budget` bytes uncut; where no cut makes it fit, the one that needs least (the engine
/// then says how much). options.sequence_length must be there. The same on every rank of the same
/// run.
TileSettings choose_tiles(const ModelConfig& model, const TrainSettings& settings, const Mesh& mesh,
                          const EngineOptions& options, std::int64_t device_budget);

}  // namespace zero3d
