// The schedule of a folded pipeline (ZB-V): each stage has two chunks, so that the last segment is
// where the first one is. Internal to pipeline_schedule.
#pragma once

#include <vector>

#include "zero3d/engine/pipeline/pipeline_schedule.h"

namespace zero3d {

/// At equal times of forward, input and weight gradients no stage waits between its first and its
/// last forward, once there are two micro-batches a stage; at most 2 stages segments of
/// micro-batches are in flight, as much memory as 1F1B takes.
std::vector<std::vector<PipelineTask>> plan_folded(const PipelineShape& shape, int micro_batches);

}  // namespace zero3d
