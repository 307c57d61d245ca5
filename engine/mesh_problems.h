// What keeps a module from being trained on a mesh, all at once and before anything is planned: for
// the engine, and for who judges settings without making one.
#pragma once

#include <string>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/engine/train_settings.h"

namespace zero3d {

/// What Module::mesh_problems says, and what keeps the module's blocks from being dealt to the
/// segments of the settings' pipeline; each with what would work.
std::vector<std::string> mesh_problems(const Module& module, const TrainSettings& settings,
                                       const GridDegrees& degrees);

}  // namespace zero3d
