// The loop of fma_peak.h, compiled once per instruction set.
#include "fma_peak.h"

#include <algorithm>

#include "zero3d/core/trace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fma_peak.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Runs `rounds` of ten independent chains of multiply-adds, enough to fill two units four cycles
/// deep; gives the operations done. Sums leave through `sink`, so that none can be left out.
double multiply_adds(long rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 1e-3f);
  // Chains from one value would be one chain to the compiler.
  auto a = hn::Iota(d, 0.0f), b = hn::Iota(d, 1.0f), c = hn::Iota(d, 2.0f), e = hn::Iota(d, 3.0f),
       f = hn::Iota(d, 4.0f), g = hn::Iota(d, 5.0f), h = hn::Iota(d, 6.0f), i = hn::Iota(d, 7.0f),
       j = hn::Iota(d, 8.0f), k = hn::Iota(d, 9.0f);
  for (long round = 0; round < rounds; ++round) {
    a = hn::MulAdd(a, factor, term);
    b = hn::MulAdd(b, factor, term);
    c = hn::MulAdd(c, factor, term);
    e = hn::MulAdd(e, factor, term);
    f = hn::MulAdd(f, factor, term);
    g = hn::MulAdd(g, factor, term);
    h = hn::MulAdd(h, factor, term);
    i = hn::MulAdd(i, factor, term);
    j = hn::MulAdd(j, factor, term);
    k = hn::MulAdd(k, factor, term);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i))),
              hn::Add(j, k));
  hn::StoreU(sum, d, sink);
  return 2.0 * 10 * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace zero3d::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::bench {
HWY_EXPORT(multiply_adds);

double fma_peak() {
  float sink[64];
  double best = 0;
  for (int run = 0; run < 20; ++run) {
    const auto begin = now_ns();
    const double operations = HWY_DYNAMIC_DISPATCH(multiply_adds)(2'000'000, sink);
    best = std::max(best, operations / static_cast<double>(now_ns() - begin));
  }
  return best;
}

}  // namespace zero3d::bench
#endif  // HWY_ONCE
