// What a run is going to do and take, in words: printed before the first step, and all that
// --dry-run does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train_plan.h"
#include "zero3d/engine/engine.h"

namespace zero3d::tools {

/// Bytes of each rank, by tier and category: lines for the device, the host, and drives if they are
/// used.
std::vector<std::string> describe_memory(const MemoryEstimate& memory);

/// The cut and what it bounds, "" without one.
std::string describe_tiles(const TileSettings& tiles, const ZeroPlan& plan);

/// On standard output: model, mesh, batch, data, precision, optimizer, offload, tiles, memory.
/// `process`: bytes of this process at its highest; `by_stage`: of the device of a rank of each
/// stage; `binding` is for people to read.
void print_plan(const TrainPlan& plan, Engine& engine, const TileSettings& tiles,
                const MemoryEstimate& memory, std::int64_t process,
                const std::vector<std::int64_t>& by_stage, const std::string& binding);

}  // namespace zero3d::tools
