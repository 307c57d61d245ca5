// Which rows of each sample a matrix of rows holds.
#pragma once

#include <cstdint>

namespace zero3d::kernels {

/// Rows [first, first + count) of every sample, sample after sample. `first` is not 0 where the
/// sequence is split over ranks: positions and random numbers count within the whole sample.
struct SampleRows {
  std::int64_t count = 0;
  std::int64_t first = 0;

  SampleRows(std::int64_t rows, std::int64_t first_row = 0)  // NOLINT(google-explicit-constructor)
      : count(rows), first(first_row) {}
};

}  // namespace zero3d::kernels
