// Which part of a vocabulary a table or a matrix of logits holds.
#pragma once

#include <algorithm>
#include <cstdint>

namespace zero3d::kernels {

/// Entries [first, first + count) of a vocabulary of `total`: the first `count` rows of a table, or
/// columns of logits. What is stored behind them is padding.
struct VocabularyPart {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t total = 0;

  static VocabularyPart all(std::int64_t total) { return {0, total, total}; }
  /// Of ranks that store `stored` entries each, in order.
  static VocabularyPart of_rank(int rank, std::int64_t stored, std::int64_t total) {
    const std::int64_t first = std::min(total, rank * stored);
    return {first, std::min(stored, total - first), total};
  }
  bool holds(std::int64_t entry) const { return entry >= first && entry < first + count; }
};

/// What becomes of the rows of tokens that a part does not hold.
enum class OtherTokens {
  zero,  ///< The sum over all parts is what one table gives.
  keep   ///< They are left alone: each part writes its own, one after the other.
};

}  // namespace zero3d::kernels
