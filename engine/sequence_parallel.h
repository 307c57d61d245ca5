// The ranks that share sequences (by all-to-all around attention), as a block sees them: each works
// on its own positions of every sample, one part after the other, and holds all parameters of its
// place otherwise. What looks at whole samples says so: attention trades rows of all heads for all
// rows of some, the loss is summed. Of the weights' gradients each rank writes what its rows add;
// the engine sums them, as over replicas.
#pragma once

#include <cstdint>
#include <span>

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d {

class Communicator;

/// Positions [first, first + count) of each sample.
struct SequencePart {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const SequencePart&, const SequencePart&) = default;
};

/// The part of rank `rank` of `size` in samples of `length` tokens: as even as it can be in
/// multiples of `grain` where that divides the length, else in tokens. Throws Error(kInvalid) where
/// a rank would have none.
SequencePart sequence_part(std::int64_t length, int rank, int size, std::int64_t grain = 1);

class SequenceParallel {
 public:
  SequenceParallel() = default;  ///< One rank.
  /// `group`: for the compute stream; null: nothing travels. `grain`: of sequence_part.
  SequenceParallel(int rank, int size, Communicator* group, std::int64_t grain = 1)
      : rank_(rank), size_(size), group_(group), grain_(grain) {}
  /// The same rank in a dry run.
  SequenceParallel without_links() const;
  /// For samples of `length` tokens; throws as sequence_part.
  SequenceParallel of(std::int64_t length) const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::int64_t grain() const { return grain_; }
  bool alone() const { return size_ == 1; }

  /// Of samples as of() was told; alone, a rank's rows are all there are.
  SequencePart part(int rank) const { return sequence_part(length_, rank, size_, grain_); }
  SequencePart mine() const { return part(rank_); }
  /// Where this rank's rows begin in their sample.
  std::int64_t first() const { return alone() ? 0 : mine().first; }
  /// Rows of a whole sample, of which `mine` are here.
  std::int64_t whole(std::int64_t mine) const { return alone() ? mine : length_; }

  /// Communicator::all_to_all. Nothing in a dry run.
  void all_to_all(Stream& stream, std::span<const ConstView> to, std::span<const View> from) const;
  /// `data` becomes the sum of all ranks', taken in fp32 and rounded once.
  void sum(Stream& stream, const View& data) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  Communicator* group_ = nullptr;
  std::int64_t grain_ = 1;
  std::int64_t length_ = 0;
};

}  // namespace zero3d
