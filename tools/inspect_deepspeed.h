// Says what a checkpoint of DeepSpeed holds.
#pragma once

#include <ostream>

#include "zero3d/formats/deepspeed_checkpoint.h"

namespace zero3d::tools {

/// Where the run was, in lines, and a line for each parameter: name, shape, states.
void print_checkpoint(const DeepspeedCheckpoint& checkpoint, std::ostream& out);

}  // namespace zero3d::tools
