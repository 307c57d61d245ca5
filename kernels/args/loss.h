// What the passes of the cross-entropy get. Plain pointers and extents, the same for every back
// end.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels {

struct CrossEntropyArgs {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  const void* logits = nullptr;
  const std::int32_t* targets = nullptr;
  float* lse = nullptr;   ///< [rows]
  float* loss = nullptr;  ///< [2]
};

struct CrossEntropyGradientArgs {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  void* logits = nullptr;  ///< Becomes the gradient.
  const std::int32_t* targets = nullptr;
  const float* lse = nullptr;
  const float* loss = nullptr;
  const float* seed = nullptr;
  std::int64_t first = 0;  ///< The class of the first logit.
};

struct CrossEntropyTileArgs {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t classes = 0;  ///< Of the tile.
  std::int64_t first = 0;
  std::int64_t vocabulary = 0;
  const void* logits = nullptr;
  const std::int32_t* targets = nullptr;
  float* state = nullptr;  ///< [rows, 3]
};

struct CrossEntropyFinishArgs {
  std::int64_t rows = 0;
  const float* state = nullptr;
  const std::int32_t* targets = nullptr;
  float* lse = nullptr;
  float* loss = nullptr;
};

struct MeanLossArgs {
  const float* loss = nullptr;  ///< [2]
  double* means = nullptr;      ///< [2]: their sum, and how many.
  bool accumulate = false;
};

}  // namespace zero3d::kernels
