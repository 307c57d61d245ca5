// Work that may fail on one rank without ending the run: all ranks hear of it.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

/// Each rank's work() result, in rank order; where one has thrown, every rank throws an Error of
/// that kind which names the rank. Collective, host-blocking. What failed in the world itself goes
/// on as it is.
std::vector<std::string> try_together(Communicator& world,
                                      const std::function<std::string()>& work);

}  // namespace zero3d
