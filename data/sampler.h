// Which samples a rank trains on, and reading them: pure functions of the number of samples already
// consumed. That one integer is all the state there is, whatever the split over ranks, so a run can
// be resumed with another number of them and sees the same global batches.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/data/dataset.h"

namespace zero3d {

struct BatchSplit {
  std::int64_t micro_batch = 1;   ///< Rows of a micro-batch on one rank.
  std::int64_t accumulation = 1;  ///< Micro-batches of a step.
  std::int64_t data_parallel = 1;

  std::int64_t samples_per_step() const { return micro_batch * accumulation * data_parallel; }
};

struct SampleOrder {
  bool shuffle = false;  ///< Otherwise in the order of the data, over and over.
  std::uint64_t seed = 0;
};

/// The sample at global position `position` (0 is the first that the run reads) of a data set of
/// `samples`: position modulo samples in order, or the seed's permutation number position /
/// samples.
std::int64_t sample_at(const SampleOrder& order, std::int64_t position, std::int64_t samples);

/// One rank's micro-batch, row-major [micro_batch, sequence_length] each.
struct Batch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::int64_t rows = 0;
  std::int64_t sequence_length = 0;
  std::int64_t first_position = 0;  ///< Global position of row 0; the other rows follow on.
  std::int64_t first_in_step = 0;   ///< The same, counted from the first sample of the step.
};

/// Hands out micro-batches step by step. Row b of micro-batch m on data-parallel rank r is at
/// position consumed() + (m*data_parallel + r)*micro_batch + b. The data set must outlive it. One
/// per thread; several may share a data set.
class Sampler {
 public:
  Sampler(const Dataset& dataset, const BatchSplit& split, const SampleOrder& order);

  /// Micro-batch `micro` of the current step for data-parallel rank `rank`.
  Batch read(std::int64_t micro, std::int64_t rank) const;
  /// The same without reading: its tokens and targets are zeros.
  Batch blank(std::int64_t micro, std::int64_t rank) const;
  /// Goes on to the next step.
  void advance() { consumed_ += split_.samples_per_step(); }

  /// Samples consumed by all ranks in all steps so far: the state to save and restore.
  std::int64_t consumed() const { return consumed_; }
  void restore(std::int64_t consumed);
  /// Passes over the data so far, as a real number.
  double epoch() const;

  const BatchSplit& split() const { return split_; }

 private:
  const Dataset* dataset_;
  BatchSplit split_;
  SampleOrder order_;
  std::int64_t consumed_ = 0;
};

}  // namespace zero3d
