// Embeddings on the CPU: the bodies behind kernels/embedding.h, called from a stream's task.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"

namespace zero3d::kernels::cpu {

struct EmbeddingArgs {
  DType dtype = DType::f32;  ///< Of the activations.
  std::int64_t rows = 0;     ///< Tokens, batch * seq.
  std::int64_t seq = 0;
  std::int64_t width = 0;
  std::int64_t vocabulary = 0;  ///< Rows of the table.
  const std::int32_t* tokens = nullptr;
  const void* table = nullptr;
  const void* positions = nullptr;  ///< May be null.
  void* out = nullptr;
};
/// Throws Error(kInvalid) at the first token outside the table.
void embedding_forward(const EmbeddingArgs& args);

struct EmbeddingGradientArgs {
  DType dtype = DType::f32;  ///< Of dout.
  std::int64_t rows = 0;
  std::int64_t seq = 0;
  std::int64_t width = 0;
  std::int64_t table_rows = 0;
  const std::int32_t* tokens = nullptr;  ///< Null for positions: row r belongs to r % seq.
  const void* dout = nullptr;
  DType table_dtype = DType::f32;
  void* dtable = nullptr;
  bool accumulate = false;
};
/// Throws Error(kInvalid) at the first token outside the table.
void embedding_backward(const EmbeddingGradientArgs& args);
void position_backward(const EmbeddingGradientArgs& args);

}  // namespace zero3d::kernels::cpu
