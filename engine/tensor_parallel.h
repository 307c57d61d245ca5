// The ranks that share every layer (tensor parallelism), as a block sees them. Between its parallel
// regions a block works on activations that all of them hold alike, or, with a split sequence, on
// its own rows of each sample; within one, on whole samples and its part of the weights' columns.
// BlockContext::enter and leave are the borders, and each is the other's backward.
#pragma once

#include <cstdint>

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d {

class Communicator;

class TensorParallel {
 public:
  TensorParallel() = default;  ///< One rank.
  /// `group` is for the compute stream; null: nothing travels, as in a dry run.
  TensorParallel(int rank, int size, Communicator* group, bool splits_sequence)
      : rank_(rank), size_(size), group_(group), splits_sequence_(splits_sequence && size > 1) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool alone() const { return size_ == 1; }
  /// Outside parallel regions each rank has an equal share of the rows of each sample, in order.
  bool splits_sequence() const { return splits_sequence_; }
  /// Where this rank's share of `rows` rows begins in its sample.
  std::int64_t first_row(std::int64_t rows) const { return splits_sequence_ ? rank_ * rows : 0; }

  /// Every rank's `mine`, in their order. Nothing in a dry run.
  void all_gather(Stream& stream, const ConstView& mine, const View& all) const;
  /// `data` becomes the sum of all ranks', taken in fp32 and rounded once.
  void sum(Stream& stream, const View& data) const;
  /// [B, T/size, ...] of every rank -> [B, T, ...], and the sums of [B, T, ...] -> [B, T/size,
  /// ...].
  void gather_rows(Stream& stream, const ConstView& mine, const View& all) const;
  void scatter_sums(Stream& stream, const ConstView& parts, const View& mine) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  Communicator* group_ = nullptr;
  bool splits_sequence_ = false;
};

}  // namespace zero3d
