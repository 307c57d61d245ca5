// Attention on tensor cores: what attention's bodies try first.
#pragma once

#include "zero3d/kernels/args/attention.h"
#include "zero3d/kernels/cuda/native.h"

namespace zero3d::kernels::cuda {

/// Enqueues nothing and is false for a dtype, head dim or alignment that it does not take.
bool matrix_attention_forward(const AttentionArgs& args, NativeStream stream);

struct MatrixGradientPass {
  AttentionArgs a;  ///< Its `out` and `lse` are unused.
  ConstRows dout;
  const float *lse, *delta;  ///< [batch, heads, seq]; delta: dout . out
  Rows dq, dk, dv;
};
bool matrix_attention_backward(const MatrixGradientPass& pass, NativeStream stream);

}  // namespace zero3d::kernels::cuda
