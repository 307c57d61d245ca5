// Activations and dropout on the CPU: the bodies behind kernels/activation.h, called from a
// stream's task.
#pragma once

#include <cstdint>

#include "zero3d/kernels/args/activation.h"

namespace zero3d::kernels::cpu {

void gelu(const GeluArgs& args);

void gated_forward(const GatedArgs& args);
void gated_backward(const GatedArgs& args);

/// Elements for which dropout draws its numbers at a time.
inline constexpr std::int64_t kDropoutChunk = 4096;

void dropout(const DropoutArgs& args);

}  // namespace zero3d::kernels::cpu
