// Cross-entropy on the CPU: the bodies behind kernels/loss.h, called from a stream's task.
#pragma once

#include "zero3d/kernels/args/loss.h"

namespace zero3d::kernels::cpu {

/// Throws Error(kInvalid) at the first target outside the vocabulary.
void cross_entropy_forward(const CrossEntropyArgs& args);

void cross_entropy_backward(const CrossEntropyGradientArgs& args);

/// As cross_entropy_forward.
void cross_entropy_tile(const CrossEntropyTileArgs& args);
void cross_entropy_finish(const CrossEntropyFinishArgs& args);

void add_mean_loss(const MeanLossArgs& args);

}  // namespace zero3d::kernels::cpu
