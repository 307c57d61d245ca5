// Newton-Schulz iterations on the CPU: the bodies behind kernels/newton_schulz.h, called from a
// stream's task.
#pragma once

#include "zero3d/kernels/args/newton_schulz.h"

namespace zero3d::kernels::cpu {

void matrix_polynomial(const PolynomialArgs& args);
void rescale(const RescaleArgs& args);

}  // namespace zero3d::kernels::cpu
