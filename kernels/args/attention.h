// What the passes of attention and rope get. Plain pointers and extents, the same for every back
// end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "zero3d/core/dtype.h"
#include "zero3d/core/random.h"
#include "zero3d/kernels/args/rows.h"

namespace zero3d::kernels {

struct AttentionArgs {
  DType dtype = DType::f32;
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t window = 0;  ///< Keys that a query sees, its own included; 0: all before it.
  float scale = 0;
  float dropout = 0;
  std::int64_t head_offset = 0;
  RandomKey key;
  ConstRows q, k, v;
  Rows out;
  float* lse = nullptr;  ///< [batch, heads, seq]
};

struct AttentionGradientArgs {
  AttentionArgs forward;  ///< Its `out` and `lse` are unused.
  ConstRows dout, out;
  const float* lse = nullptr;
  Rows dq, dk, dv;
  float* scratch = nullptr;  ///< attention_scratch elements.
};

struct RopeArgs {
  DType dtype = DType::f32;
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t first_position = 0;  ///< Of row 0 of each sample.
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  Rows x;
  std::vector<float> inverse_frequencies;  ///< By value: a few hundred bytes.
  float attention_scaling = 1;
  bool inverse = false;
};

}  // namespace zero3d::kernels
