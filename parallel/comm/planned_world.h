// The ranks of a run that is only planned: who is where and in which groups, without any of them
// but this one, so that plans for more ranks than there are processors take no threads.
#pragma once

#include <memory>

#include "zero3d/parallel/comm/communicator.h"
#include "zero3d/parallel/topology.h"

namespace zero3d {

/// For one Mesh of the topology's degrees, made at once: its groups have rank and size as in a run.
/// Nothing travels: every operation throws Error(kInvalid).
std::unique_ptr<Communicator> make_planned_world(const Topology& topology, int rank);

}  // namespace zero3d
