// Exact sums on the CPU: the bodies behind kernels/exact_sums.h, called from a stream's task.
#pragma once

#include "zero3d/kernels/args/exact_sums.h"

namespace zero3d::kernels::cpu {

void exact_sums(const ExactSumsArgs& args);
void exact_totals(const ExactTotalsArgs& args);

}  // namespace zero3d::kernels::cpu
