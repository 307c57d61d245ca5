// What exact sums get. Plain pointers and extents, the same for every back end.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/kernels/exact_sums.h"

namespace zero3d::kernels {

struct ExactSumsArgs {
  const double* values = nullptr;
  std::vector<SumRange> ranges;
  ExactSum* sums = nullptr;
  std::int64_t count = 0;             ///< Of sums.
  std::int64_t* bad_range = nullptr;  ///< [2]; may be null.
};

struct ExactTotalsArgs {
  const ExactSum* sums = nullptr;  ///< [parts, count]
  std::int64_t parts = 0;
  std::int64_t count = 0;
  double* values = nullptr;
};

}  // namespace zero3d::kernels
