// What --print-schedule shows: the schedule of the pipeline as text and as a picture, and beside it
// what a traced run made of it.
#pragma once

#include "train_plan.h"

namespace zero3d::tools {

/// Throws Error(kInvalid) where there is one stage.
void require_pipeline(const TrainPlan& plan);
void print_schedule(const TrainPlan& plan);
/// Writes the picture and commits it. Where spans were recorded (--trace), those of the first
/// replica's last step are drawn below.
void write_schedule(const TrainPlan& plan);

}  // namespace zero3d::tools
