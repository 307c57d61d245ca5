// One rank's part of a training run: device, model, engine, the loop over steps, and what rank 0
// writes.
#pragma once

#include <string>

#include "train_plan.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::tools {

/// `share` says which of the allowed CPUs are this rank's. Returns why the run did not do what it
/// was to, though it came to its end and wrote everything; "" when it did. The same on all ranks.
std::string train_rank(const TrainPlan& plan, Communicator& world, const Share& share);

}  // namespace zero3d::tools
