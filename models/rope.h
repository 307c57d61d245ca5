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
/// to dynamic rope only). In fp32, operation by operation as transformers' modeling_rope_utils.
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim,
                                            std::int64_t max_positions, std::int64_t seq);

class Rope {
 public:
  explicit Rope(const ModelConfig& config);

  /// Turns each of `columns` (rows [B * seq]) in place; inverse: backwards, for gradients.
  void turn(BlockContext& context, std::int64_t seq, std::initializer_list<Columns> columns,
            bool inverse) const;

 private:
  /// Made once a length.
  const std::vector<float>& table(std::int64_t seq) const;

  RopeConfig rope_;
  std::int64_t head_dim_;
  std::int64_t max_positions_;
  std::vector<float> trained_;
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::vector<float>> stretched_;  ///< By length; dynamic rope.
};

}  // namespace zero3d
