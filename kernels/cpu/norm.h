// LayerNorm and RMSNorm on the CPU: the bodies behind kernels/norm.h, called from a stream's task.
#pragma once

#include "zero3d/kernels/args/norm.h"

namespace zero3d::kernels::cpu {

void norm_forward(const NormArgs& args);
void norm_backward_input(const NormArgs& args);
void norm_backward_weight(const NormArgs& args);

}  // namespace zero3d::kernels::cpu
