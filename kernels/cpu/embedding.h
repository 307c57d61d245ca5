// Embeddings on the CPU: the bodies behind kernels/embedding.h, called from a stream's task.
#pragma once

#include "zero3d/kernels/args/embedding.h"

namespace zero3d::kernels::cpu {

/// Throws Error(kInvalid) at the first token outside the table.
void embedding_forward(const EmbeddingArgs& args);

/// Throws Error(kInvalid) at the first token outside the table.
void embedding_backward(const EmbeddingGradientArgs& args);
void position_backward(const EmbeddingGradientArgs& args);

}  // namespace zero3d::kernels::cpu
