// Rotary position embedding on the CPU: a task takes some positions, computes their angles once and
// turns every sample's rows by them.
#include <cmath>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/attention.h"
#include "zero3d/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/rope.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

/// Row t of all samples. cosines and sines: [head_dim / 2], scaled, not yet rounded.
/// Each product and the sum are rounded to the dtype, as x * cos + rotate_half(x) * sin leaves
/// them.
void rope_position(const RopeArgs& a, std::int64_t t, const float* cosines, const float* sines) {
  const std::int64_t half = a.head_dim / 2;
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t sample = 0; sample < a.batch; ++sample)
      for (std::int64_t head = 0; head < a.heads; ++head) {
        T* x = row_of<T>(a.x, sample * a.seq + t) + head * a.head_dim;
        for_lanes(half, [&](std::int64_t i, auto lanes) HWY_ATTR {
          const Vec32 cosine = round_to<T>(load(cosines + i, lanes));
          const Vec32 sine = round_to<T>(load(sines + i, lanes));
          const Vec32 low = load(x + i, lanes), high = load(x + half + i, lanes);
          store(hn::Sub(round_to<T>(hn::Mul(low, cosine)), round_to<T>(hn::Mul(high, sine))), x + i,
                lanes);
          store(hn::Add(round_to<T>(hn::Mul(high, cosine)), round_to<T>(hn::Mul(low, sine))),
                x + half + i, lanes);
        });
      }
  });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(rope_position);

namespace cpu {

void rope(const RopeArgs& args) {
  const std::int64_t half = args.head_dim / 2;
  parallel_for(args.seq, 8, [&](std::int64_t begin, std::int64_t end) {
    float* cosines = thread_floats(static_cast<std::size_t>(2 * half));
    float* sines = cosines + half;
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(args.first_position + t) *
                            args.inverse_frequencies[static_cast<std::size_t>(i)];
        cosines[i] = std::cos(angle) * args.attention_scaling;
        sines[i] =
            std::sin(angle) * (args.inverse ? -args.attention_scaling : args.attention_scaling);
      }
      HWY_DYNAMIC_DISPATCH(rope_position)(args, t, cosines, sines);
    }
  });
}

}  // namespace cpu
}  // namespace zero3d::kernels
#endif  // HWY_ONCE
