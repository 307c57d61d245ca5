// Attention and rope on the CPU: the bodies behind kernels/attention.h, called from a stream's
// task.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zero3d/core/dtype.h"
#include "zero3d/core/random.h"
#include "zero3d/kernels/cpu/rows.h"

namespace zero3d::kernels::cpu {

/// Queries or keys of one block of scores.
inline constexpr std::int64_t kAttentionBlock = 64;

struct AttentionArgs {
  DType dtype = DType::f32;
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 0;
  float dropout = 0;
  RandomKey key;
  ConstRows q, k, v;
  Rows out;
  float* lse = nullptr;  ///< [batch, heads, seq]
};
void attention_forward(const AttentionArgs& args);

struct AttentionGradientArgs {
  AttentionArgs forward;  ///< Its `out` and `lse` are unused.
  ConstRows dout, out;
  const float* lse = nullptr;
  Rows dq, dk, dv;
  float* scratch = nullptr;  ///< attention_scratch elements.
};
void attention_backward(const AttentionGradientArgs& args);

/// Into how many parts the query heads of one key/value head are split, each summing its own
/// gradient of the keys and values: enough for 16 tasks a sample if the heads allow it.
std::int64_t attention_parts(std::int64_t heads, std::int64_t kv_heads);
std::int64_t attention_scratch(std::int64_t batch, std::int64_t seq, std::int64_t heads,
                               std::int64_t kv_heads, std::int64_t head_dim);

/// 64-byte aligned fp32 of the calling thread, valid until its next call; not initialised.
float* thread_floats(std::size_t count);

struct RopeArgs {
  DType dtype = DType::f32;
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  Rows x;
  const float* inverse_frequencies = nullptr;
  float attention_scaling = 1;
  bool inverse = false;
};
void rope(const RopeArgs& args);

}  // namespace zero3d::kernels::cpu
