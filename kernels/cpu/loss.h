// Cross-entropy on the CPU: the bodies behind kernels/loss.h, called from a stream's task.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels::cpu {

struct CrossEntropyArgs {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  const void* logits = nullptr;
  const std::int32_t* targets = nullptr;
  float* lse = nullptr;   ///< [rows]
  float* loss = nullptr;  ///< [2]
};
/// Throws Error(kInvalid) at the first target outside the vocabulary.
void cross_entropy_forward(const CrossEntropyArgs& args);

struct CrossEntropyGradientArgs {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  void* logits = nullptr;  ///< Becomes the gradient.
  const std::int32_t* targets = nullptr;
  const float* lse = nullptr;
  const float* loss = nullptr;
  const float* seed = nullptr;
};
void cross_entropy_backward(const CrossEntropyGradientArgs& args);

}  // namespace zero3d::kernels::cpu
