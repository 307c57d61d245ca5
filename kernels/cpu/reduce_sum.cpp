// Sums in rank order, compiled once per instruction set.
#include "zero3d/kernels/cpu/reduce_sum.h"

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/reduce_sum.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

/// The roundings that are left: rounding a value of the wire's dtype, or rounding twice to one
/// dtype, changes nothing.
struct Roundings {
  DType in = DType::f32;
  DType out = DType::f32;
};

HWY_INLINE Vec32 round_to(DType dtype, Vec32 value) {
  if (dtype == DType::bf16) return round_to<bf16>(value);
  if (dtype == DType::f16) return round_to<f16>(value);
  return value;
}

/// Elements [begin, end). kPlain: scales of 1 and no roundings, the common case, without a branch
/// per vector.
template <typename In, typename Out, bool kPlain>
void sum(const ReduceSumArgs& a, const Roundings& roundings, std::int64_t begin, std::int64_t end) {
  constexpr auto kLane = static_cast<std::int64_t>(kLanes);
  const Vec32 scale_in = set(a.scale_in), scale_out = set(a.scale_out);
  const auto input = [&](std::size_t rank, std::int64_t at, auto lanes) HWY_ATTR {
    const Vec32 value = load(static_cast<const In*>(a.inputs[rank]) + at, lanes);
    return kPlain ? value : round_to(roundings.in, hn::Mul(value, scale_in));
  };
  const auto output = [&](Vec32 value, std::int64_t at, auto lanes) HWY_ATTR {
    store(kPlain ? value : round_to(roundings.out, hn::Mul(value, scale_out)),
          static_cast<Out*>(a.out) + at, lanes);
  };
  const AllLanes all;
  std::int64_t i = begin;
  for (; i + 4 * kLane <= end; i += 4 * kLane) {
    Vec32 s0 = input(0, i, all), s1 = input(0, i + kLane, all);
    Vec32 s2 = input(0, i + 2 * kLane, all), s3 = input(0, i + 3 * kLane, all);
    for (std::size_t r = 1; r < a.inputs.size(); ++r) {
      s0 = hn::Add(s0, input(r, i, all));
      s1 = hn::Add(s1, input(r, i + kLane, all));
      s2 = hn::Add(s2, input(r, i + 2 * kLane, all));
      s3 = hn::Add(s3, input(r, i + 3 * kLane, all));
    }
    output(s0, i, all);
    output(s1, i + kLane, all);
    output(s2, i + 2 * kLane, all);
    output(s3, i + 3 * kLane, all);
  }
  for_lanes(end - i, [&](std::int64_t j, auto lanes) HWY_ATTR {
    Vec32 total = input(0, i + j, lanes);
    for (std::size_t r = 1; r < a.inputs.size(); ++r)
      total = hn::Add(total, input(r, i + j, lanes));
    output(total, i + j, lanes);
  });
}

void sum_run(const ReduceSumArgs& a, std::int64_t begin, std::int64_t end) {
  Roundings roundings{a.wire.value_or(DType::f32), a.wire.value_or(DType::f32)};
  if (roundings.in == a.in_dtype && a.scale_in == 1.0f) roundings.in = DType::f32;
  if (roundings.out == a.out_dtype) roundings.out = DType::f32;
  const bool plain = a.scale_in == 1.0f && a.scale_out == 1.0f && roundings.in == DType::f32 &&
                     roundings.out == DType::f32;
  with_type(a.in_dtype, [&](auto in) HWY_ATTR {
    with_type(a.out_dtype, [&](auto out) HWY_ATTR {
      if (plain) {
        sum<decltype(in), decltype(out), true>(a, roundings, begin, end);
      } else {
        sum<decltype(in), decltype(out), false>(a, roundings, begin, end);
      }
    });
  });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(sum_run);

void cpu::reduce_sum(const ReduceSumArgs& args) {
  constexpr std::int64_t kGrain = 1 << 17;
  const bool plain =
      args.scale_in == 1.0f && args.scale_out == 1.0f && (!args.wire || args.wire == args.in_dtype);
  if (args.inputs.size() == 1 && args.inputs[0] == args.out && args.in_dtype == args.out_dtype &&
      plain)
    return;  // a group of one, in place
  parallel_for(args.count, kGrain, [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(sum_run)(args, begin, end);
  });
}

}  // namespace zero3d::kernels
#endif  // HWY_ONCE
