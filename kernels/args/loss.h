// What the passes of the cross-entropy get. Plain pointers and extents, the same for every back
// end.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"
#include "zero3d/kernels/vocabulary_part.h"

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

/// Of a part of the vocabulary: three numbers a row.
struct CrossEntropyPartArgs {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< Of logits, with padding.
  VocabularyPart part;
  const void* logits = nullptr;
  const std::int32_t* targets = nullptr;
  bool continues = false;       ///< From the statistics of the parts before this one.
  float* statistics = nullptr;  ///< [3, rows]: largest logit, sum of exp(logit - that), target's.
};

struct CrossEntropyJoinArgs {
  std::int64_t parts = 0;
  std::int64_t rows = 0;
  const float* statistics = nullptr;  ///< [parts, 3, rows]
  const std::int32_t* targets = nullptr;
  float* lse = nullptr;   ///< [rows]
  float* loss = nullptr;  ///< [2]
};

struct CrossEntropyGradientArgs {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< Of logits, with padding.
  VocabularyPart part;
  void* logits = nullptr;  ///< Becomes the gradient.
  const std::int32_t* targets = nullptr;
  const float* lse = nullptr;
  const float* loss = nullptr;
  const float* seed = nullptr;
};

struct MeanLossArgs {
  const float* loss = nullptr;  ///< [2]
  double* means = nullptr;      ///< [2]: their sum, and how many.
  bool accumulate = false;
};

}  // namespace zero3d::kernels
