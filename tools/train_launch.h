// Runs the ranks of a training run, as threads of this process or as one MPI process each, and sees
// to it that a failure is told once and ends all of them.
#pragma once

#include "train_options.h"

namespace zero3d::tools {

/// Throws what ended the run; under MPI ExitStatus on ranks that leave the telling to
/// another.
void train(const TrainRequest& request);

}  // namespace zero3d::tools
