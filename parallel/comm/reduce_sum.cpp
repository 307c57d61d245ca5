// Sums in rank order, one body compiled per instruction set. Conversions to and from 16 bits round
// to nearest even as core/half.h does; instruction sets without half-precision conversion use it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/parallel/comm/reduce_sum.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
// clang-format off
#include <hwy/highway.h>
// clang-format on

#include "zero3d/core/half.h"
#include "zero3d/device/parallel.h"
#include "zero3d/parallel/comm/reduce_sum.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using V = hn::Vec<F32>;

// x86 gets half-precision conversion (F16C) with AVX2; lower tiers emulate it without rounding to
// even.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
constexpr bool kHardwareF16 = false;
#else
constexpr bool kHardwareF16 = true;
#endif

HWY_INLINE V load(const float* from) { return hn::LoadU(F32(), from); }

HWY_INLINE V load(const bf16* from) {
  const auto bits = hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}

HWY_INLINE V load(const f16* from) {
  if constexpr (kHardwareF16) {
    const hn::Rebind<hwy::float16_t, F32> d16;
    return hn::PromoteTo(F32(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    HWY_ALIGN float lanes[hn::MaxLanes(F32())];
    for (std::size_t i = 0; i < hn::Lanes(F32()); ++i) lanes[i] = to_float(from[i]);
    return hn::Load(F32(), lanes);
  }
}

// The upper half of each lane is the bf16; the lower half is zero.
HWY_INLINE hn::Vec<U32> bf16_bits(V value) {
  const U32 du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  return hn::And(hn::IfThenElse(is_nan, quiet, rounded), hn::Set(du, 0xffff0000u));
}

HWY_INLINE void store(V value, float* to) { hn::StoreU(value, F32(), to); }

HWY_INLINE void store(V value, bf16* to) {
  const hn::RebindToSigned<F32> di;
  const auto bits = hn::BitCast(di, hn::ShiftRight<16>(bf16_bits(value)));
  hn::StoreU(hn::DemoteTo(U16(), bits), U16(), reinterpret_cast<std::uint16_t*>(to));
}

HWY_INLINE void store(V value, f16* to) {
  if constexpr (kHardwareF16) {
    const hn::Rebind<hwy::float16_t, F32> d16;
    hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    HWY_ALIGN float lanes[hn::MaxLanes(F32())];
    hn::Store(value, F32(), lanes);
    for (std::size_t i = 0; i < hn::Lanes(F32()); ++i) to[i] = to_f16(lanes[i]);
  }
}

enum class Rounding { none, bf16, f16 };

HWY_INLINE V round_to(Rounding rounding, V value) {
  if (rounding == Rounding::bf16) return hn::BitCast(F32(), bf16_bits(value));
  if (rounding == Rounding::f16) {
    HWY_ALIGN f16 lanes[hn::MaxLanes(F32())];
    store(value, lanes);
    return load(lanes);
  }
  return value;
}

inline float round_to(Rounding rounding, float value) {
  if (rounding == Rounding::bf16) return to_float(to_bf16(value));
  if (rounding == Rounding::f16) return to_float(to_f16(value));
  return value;
}

struct Plan {
  std::span<const void* const> inputs;
  float scale_in;
  float scale_out;
  Rounding round_in;
  Rounding round_out;
};

// kPlain: scales of 1 and no extra rounding, the common case, without a branch per vector.
template <typename In, typename Out, bool kPlain>
void sum(const Plan& plan, Out* out, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kUnroll = 4;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  const V scale_in = hn::Set(F32(), plan.scale_in);
  const V scale_out = hn::Set(F32(), plan.scale_out);
  const auto input = [&](std::size_t rank, std::int64_t at) HWY_ATTR {
    const V value = load(static_cast<const In*>(plan.inputs[rank]) + at);
    return kPlain ? value : round_to(plan.round_in, hn::Mul(value, scale_in));
  };
  const auto output = [&](V value, std::int64_t at) HWY_ATTR {
    store(kPlain ? value : round_to(plan.round_out, hn::Mul(value, scale_out)), out + at);
  };
  const std::size_t ranks = plan.inputs.size();
  std::int64_t i = begin;
  for (; i + kUnroll * lanes <= end; i += kUnroll * lanes) {
    V a = input(0, i), b = input(0, i + lanes);
    V c = input(0, i + 2 * lanes), d = input(0, i + 3 * lanes);
    for (std::size_t r = 1; r < ranks; ++r) {
      a = hn::Add(a, input(r, i));
      b = hn::Add(b, input(r, i + lanes));
      c = hn::Add(c, input(r, i + 2 * lanes));
      d = hn::Add(d, input(r, i + 3 * lanes));
    }
    output(a, i);
    output(b, i + lanes);
    output(c, i + 2 * lanes);
    output(d, i + 3 * lanes);
  }
  for (; i < end; ++i) {
    float total = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      const float value = round_to(
          plan.round_in, to_float(static_cast<const In*>(plan.inputs[r])[i]) * plan.scale_in);
      total = r == 0 ? value : total + value;
    }
    out[i] = from_float<Out>(round_to(plan.round_out, total * plan.scale_out));
  }
}

template <typename In, typename Out>
void sum_any(const Plan& plan, void* out, std::int64_t begin, std::int64_t end) {
  const bool plain = plan.scale_in == 1.0f && plan.scale_out == 1.0f &&
                     plan.round_in == Rounding::none && plan.round_out == Rounding::none;
  if (plain) {
    sum<In, Out, true>(plan, static_cast<Out*>(out), begin, end);
  } else {
    sum<In, Out, false>(plan, static_cast<Out*>(out), begin, end);
  }
}

template <typename In>
void sum_from(const Plan& plan, void* out, DType out_dtype, std::int64_t begin, std::int64_t end) {
  switch (out_dtype) {
    case DType::bf16:
      return sum_any<In, bf16>(plan, out, begin, end);
    case DType::f16:
      return sum_any<In, f16>(plan, out, begin, end);
    default:
      return sum_any<In, float>(plan, out, begin, end);
  }
}

Rounding rounding_to(const std::optional<DType>& wire) {
  if (wire == DType::bf16) return Rounding::bf16;
  if (wire == DType::f16) return Rounding::f16;
  return Rounding::none;
}

/// Elements [begin, end) of inputs and out.
void reduce_sum_target(std::span<const void* const> inputs, DType in_dtype, void* out,
                       DType out_dtype, std::int64_t begin, std::int64_t end,
                       const ReduceOptions& options) {
  Plan plan{inputs, options.scale_in, options.scale_out, rounding_to(options.wire),
            rounding_to(options.wire)};
  // Rounding a value of the wire's dtype, or rounding twice to one dtype, changes nothing.
  if (options.wire == in_dtype && options.scale_in == 1.0f) plan.round_in = Rounding::none;
  if (options.wire == out_dtype) plan.round_out = Rounding::none;
  switch (in_dtype) {
    case DType::bf16:
      return sum_from<bf16>(plan, out, out_dtype, begin, end);
    case DType::f16:
      return sum_from<f16>(plan, out, out_dtype, begin, end);
    default:
      return sum_from<float>(plan, out, out_dtype, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace zero3d::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::detail {
HWY_EXPORT(reduce_sum_target);

void reduce_sum(std::span<const void* const> inputs, DType in_dtype, void* out, DType out_dtype,
                std::int64_t count, const ReduceOptions& options) {
  constexpr std::int64_t kGrain = 1 << 17;
  const bool plain = options.scale_in == 1.0f && options.scale_out == 1.0f &&
                     (!options.wire || options.wire == in_dtype);
  if (inputs.size() == 1 && inputs[0] == out && in_dtype == out_dtype && plain)
    return;  // a group of one, in place
  parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(reduce_sum_target)(inputs, in_dtype, out, out_dtype, begin, end, options);
  });
}

}  // namespace zero3d::detail
#endif
