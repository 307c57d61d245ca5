#include "zero3d/kernels/cpu/exact_sums.h"

#include <algorithm>
#include <cmath>

namespace zero3d::kernels::cpu {

void exact_sums(const ExactSumsArgs& args) {
  std::fill_n(args.sums, args.count, ExactSum());
  std::int64_t bad_range[2] = {-1, 0};
  for (const SumRange& range : args.ranges) {
    ExactSum& sum = args.sums[range.sum];
    for (std::int64_t i = range.first; i < range.first + range.count; ++i) {
      const double value = args.values[i];
      sum.add(value);
      if (std::isfinite(value) || bad_range[0] >= 0) continue;
      bad_range[0] = range.name;
      bad_range[1] = std::isnan(value) ? 1 : 0;
    }
  }
  if (args.bad_range != nullptr) std::copy(bad_range, bad_range + 2, args.bad_range);
}

void exact_totals(const ExactTotalsArgs& args) {
  for (std::int64_t i = 0; i < args.count; ++i) {
    ExactSum sum;
    for (std::int64_t part = 0; part < args.parts; ++part)
      sum.add(args.sums[part * args.count + i]);
    args.values[i] = sum.value();
  }
}

}  // namespace zero3d::kernels::cpu
