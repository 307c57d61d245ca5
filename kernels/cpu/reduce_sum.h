// The arithmetic of every fixed-order reduction on the CPU: one pass over the ranks' inputs, spread
// over the stream's arena. Called from a communicator's task; a vector's result is the scalar
// formula's, bit for bit.
#pragma once

#include "zero3d/kernels/args/reduce_sum.h"

namespace zero3d::kernels::cpu {

void reduce_sum(const ReduceSumArgs& args);

}  // namespace zero3d::kernels::cpu
