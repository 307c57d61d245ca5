// Cross-entropy on the CPU: the bodies behind kernels/loss.h, called from a stream's task.
#pragma once

#include "zero3d/kernels/args/loss.h"

namespace zero3d::kernels::cpu {

/// Throws Error(kInvalid) at the first target outside the vocabulary.
void cross_entropy_forward(const CrossEntropyArgs& args);

/// The halves of forward where the vocabulary is in parts; the first throws as it does.
void cross_entropy_statistics(const CrossEntropyPartArgs& args);
void cross_entropy_join(const CrossEntropyJoinArgs& args);

void cross_entropy_backward(const CrossEntropyGradientArgs& args);

void add_mean_loss(const MeanLossArgs& args);

}  // namespace zero3d::kernels::cpu
