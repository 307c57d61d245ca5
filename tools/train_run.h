// One rank's part of a training run: device, model, engine, the loop over steps, and what rank 0
// writes.
#pragma once

#include <string>

#include "train_plan.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::tools {

/// How a run ended that did not fail; the same on all ranks.
struct RunEnd {
  /// Why it did not do what it was to, though it came to its end and wrote everything; "" when it
  /// did.
  std::string shortfall;
  int stopped_by = 0;  ///< A signal, after whose step the run left; 0: none.
};

/// `share` says which of the allowed CPUs are this rank's.
RunEnd train_rank(const TrainPlan& plan, Communicator& world, const Share& share);

}  // namespace zero3d::tools
