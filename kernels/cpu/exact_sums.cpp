#include "zero3d/kernels/cpu/exact_sums.h"

#include <algorithm>
#include <cmath>

namespace zero3d::kernels::cpu {

void exact_sums(const ExactSumsArgs& args) {
  std::fill_n(args.sums, args.count, ExactSum());
  std::int64_t bad = -1;
  for (const SumRange& range : args.ranges) {
    ExactSum& sum = args.sums[range.sum];
    for (std::int64_t i = range.first; i < range.first + range.count; ++i) {
      sum.add(args.values[i]);
      if (bad < 0 && !std::isfinite(args.values[i])) bad = i;
    }
  }
  if (args.bad_value == nullptr) return;
  args.bad_value[0] = bad;
  args.bad_value[1] = bad >= 0 && std::isnan(args.values[bad]) ? 1 : 0;
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
