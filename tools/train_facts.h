// What ranks that are processes must have been started with alike, compared before any of them
// trains: whatever changes who communicates, what is computed, or what is written.
#pragma once

#include <string>
#include <vector>

#include "train_plan.h"

namespace zero3d::tools {

/// A rank's facts as text, for find_disagreement. Data and weights are told apart by their size and
/// a sample of their values.
std::string describe_facts(const TrainPlan& plan);

/// What tells data apart: its size and a sample of its tokens; "none" for none.
std::string describe_tokens(const Dataset* data);

/// "" when the ranks agree; `all` holds each rank's facts.
std::string find_disagreement(const std::vector<std::string>& all);

}  // namespace zero3d::tools
