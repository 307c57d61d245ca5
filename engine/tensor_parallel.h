// The ranks that share every layer (tensor parallelism), as a block sees them. Between its parallel
// regions a block works on activations that all of them hold alike, or, with a split sequence, on
// its own rows of each sample; within one, on whole samples and its part of the weights' columns.
// BlockContext::enter and leave are the borders, and each is the other's backward.
#pragma once

#include <cstdint>

#include "zero3d/core/view.h"
#include "zero3d/device/event.h"
#include "zero3d/device/stream.h"

namespace zero3d {

class Communicator;

/// What a rank's blocks talk over.
struct TensorParallelLinks {
  Communicator* group = nullptr;   ///< For the compute stream; null: nothing travels.
  Communicator* beside = nullptr;  ///< The same ranks, for `stream`. Null: all goes over `group`.
  Stream* stream = nullptr;
};

class TensorParallel {
 public:
  TensorParallel() = default;  ///< One rank.
  TensorParallel(int rank, int size, const TensorParallelLinks& links, bool splits_sequence)
      : rank_(rank), size_(size), links_(links), splits_sequence_(splits_sequence && size > 1) {}
  /// The same rank in a dry run.
  TensorParallel without_links() const { return {rank_, size_, {}, splits_sequence_}; }
  /// Where no backward follows: sequences are of any length there.
  TensorParallel with_whole_sequences() const { return {rank_, size_, links_, false}; }

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
  /// Sums go beside the compute stream: a product is then made in parts, so that one is summed
  /// while the next is computed.
  bool overlaps() const { return links_.beside != nullptr; }
  /// sum() or scatter_sums() of what `compute` has been given so far, beside what it is given from
  /// here on; returns the point from which it may read the result.
  Event sum_beside(Stream& compute, const View& data) const;
  Event scatter_sums_beside(Stream& compute, const ConstView& parts, const View& mine) const;
  /// [B, T/size, ...] of every rank -> [B, T, ...], and the sums of [B, T, ...] -> [B, T/size,
  /// ...].
  void gather_rows(Stream& stream, const ConstView& mine, const View& all) const;
  void scatter_sums(Stream& stream, const ConstView& parts, const View& mine) const;

 private:
  /// `beside` follows `compute`, does the work, and says when it is done.
  template <typename Work>
  Event beside(Stream& compute, const Work& work) const;

  int rank_ = 0;
  int size_ = 1;
  TensorParallelLinks links_;
  bool splits_sequence_ = false;
};

}  // namespace zero3d
