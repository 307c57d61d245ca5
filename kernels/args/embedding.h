// What the passes of the embeddings get. Plain pointers and extents, the same for every back end.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"
#include "zero3d/kernels/vocabulary_part.h"

namespace zero3d::kernels {

struct EmbeddingArgs {
  DType dtype = DType::f32;  ///< Of the activations.
  std::int64_t rows = 0;     ///< Tokens, batch * seq.
  std::int64_t seq = 0;
  std::int64_t width = 0;
  VocabularyPart part;  ///< What the table holds.
  OtherTokens others = OtherTokens::zero;
  const std::int32_t* tokens = nullptr;
  const void* table = nullptr;
  const void* positions = nullptr;  ///< May be null.
  void* out = nullptr;
};

struct EmbeddingGradientArgs {
  DType dtype = DType::f32;  ///< Of dout.
  std::int64_t rows = 0;
  std::int64_t seq = 0;
  std::int64_t width = 0;
  std::int64_t table_rows = 0;           ///< With padding.
  VocabularyPart part;                   ///< What the table holds; other tokens are left out.
  std::int64_t padding = -1;             ///< A token whose rows of dout are left out; -1: none.
  const std::int32_t* tokens = nullptr;  ///< Null for positions: row r belongs to r % seq.
  const void* dout = nullptr;
  DType table_dtype = DType::f32;
  void* dtable = nullptr;
  bool accumulate = false;
};

}  // namespace zero3d::kernels
