// What one stage of a pipeline runs: its blocks, cut out of the model, and its tasks as operations
// of a step, with what it receives and sends. Pure functions.
#pragma once

#include <vector>

#include "zero3d/engine/pipeline/pipeline_schedule.h"
#include "zero3d/engine/schedule.h"

namespace zero3d {

/// `bounds`: where each segment of the model begins, and its number of blocks; `backward_down_to`:
/// the model's first block with a parameter that trains.
StageBlocks stage_blocks(const PipelineShape& shape, const std::vector<int>& bounds,
                         int backward_down_to, int stage);

/// Of tasks as plan_pipeline gives them. What a task needs from another stage is received while the
/// task before it runs, so that two such arrivals are there at a time.
std::vector<Op> stage_ops(const std::vector<PipelineTask>& tasks, const StageBlocks& stage);

}  // namespace zero3d
