// Attention and rope on the CPU: the bodies behind kernels/attention.h, called from a stream's
// task.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zero3d/kernels/args/attention.h"

namespace zero3d::kernels::cpu {

/// Queries or keys of one block of scores.
inline constexpr std::int64_t kAttentionBlock = 64;

void attention_forward(const AttentionArgs& args);

void attention_backward(const AttentionGradientArgs& args);

/// Into how many parts the query heads of one key/value head are split, each summing its own
/// gradient of the keys and values: enough for 16 tasks a sample if the heads allow it.
std::int64_t attention_parts(std::int64_t heads, std::int64_t kv_heads);
std::int64_t attention_scratch(std::int64_t batch, std::int64_t seq, std::int64_t heads,
                               std::int64_t kv_heads, std::int64_t head_dim);

/// 64-byte aligned fp32 of the calling thread, valid until its next call; not initialised.
float* thread_floats(std::size_t count);

void rope(const RopeArgs& args);

}  // namespace zero3d::kernels::cpu
