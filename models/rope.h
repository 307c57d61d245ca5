// Rotary position embedding of the LLaMA family: its frequencies for a context length, and the turn
// of queries and keys by them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// head_dim / 2 angles a position turns by, for a sequence of `seq` positions (the length matters
/// to dynamic rope and longrope only). In fp32, operation by operation as transformers'
/// modeling_rope_utils.
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim,
                                            std::int64_t max_positions, std::int64_t seq);

/// What cos and sin are multiplied by: what the file says, else what yarn and longrope derive.
float rope_attention_factor(const RopeConfig& rope);

class Rope {
 public:
  explicit Rope(const ModelConfig& config);

  /// Turns each of `columns` (rows [B * seq], of the context's part of each sample) in place, times
  /// the attention factor; inverse: backwards, for gradients (times the factor as well).
  void turn(BlockContext& context, std::int64_t seq, std::initializer_list<Columns> columns,
            bool inverse) const;

 private:
  /// Made once a length.
  const std::vector<float>& table(std::int64_t seq) const;

  RopeConfig rope_;
  std::int64_t head_dim_;
  std::int64_t max_positions_;
  float attention_factor_;
  std::vector<float> trained_;
  std::vector<float> long_;  ///< longrope: beyond the original context.
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::vector<float>> stretched_;  ///< By length; dynamic rope.
};

}  // namespace zero3d
