// Vector code shared by the CPU kernels, compiled once per instruction set (included after
// hwy/foreach_target.h): loads and stores of f32, bf16 and f16 as vectors of fp32 with the
// conversions of core/half.h, loops with a partial last vector, and functions that keep NaN.
#include <cstdint>
#include <cstring>

#include "zero3d/core/dtype.h"
#include "zero3d/core/half.h"

#if defined(ZERO3D_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERO3D_KERNELS_CPU_SIMD_INL_H_
#undef ZERO3D_KERNELS_CPU_SIMD_INL_H_
#else
#define ZERO3D_KERNELS_CPU_SIMD_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::Rebind<std::uint32_t, F32>;
using I32 = hn::Rebind<std::int32_t, F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using Vec32 = hn::Vec<F32>;
inline constexpr std::size_t kLanes = hn::MaxLanes(F32());

// --- Loads and stores of a full vector

HWY_INLINE Vec32 load(const float* from) { return hn::LoadU(F32(), from); }

HWY_INLINE Vec32 load(const bf16* from) {
  const auto bits = hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}

HWY_INLINE Vec32 load(const f16* from) {
#if HWY_TARGET == HWY_SCALAR  // no conversion instructions
  HWY_ALIGN float wide[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) wide[i] = to_float(from[i]);
  return hn::Load(F32(), wide);
#else
  return hn::PromoteTo(F32(), hn::LoadU(F16(), reinterpret_cast<const hwy::float16_t*>(from)));
#endif
}

HWY_INLINE void store(Vec32 value, float* to) { hn::StoreU(value, F32(), to); }

/// The bits of bf16 nearest to `value` (ties to even), in the low half of each lane.
HWY_INLINE hn::Vec<U32> bf16_bits(Vec32 value) {
  const U32 d;
  const auto bits = hn::BitCast(d, value);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(d, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffu))));
  // Eq with itself, not Ne: on x86 Highway's Ne is false for NaN.
  const auto is_number = hn::RebindMask(d, hn::Eq(value, value));
  return hn::IfThenElse(is_number, rounded, hn::Or(high, hn::Set(d, 0x40u)));
}

HWY_INLINE void store(Vec32 value, bf16* to) {
  hn::StoreU(hn::TruncateTo(U16(), bf16_bits(value)), U16(), reinterpret_cast<std::uint16_t*>(to));
}

#if HWY_TARGET == HWY_AVX2
/// bf16_bits of what is no NaN, sign-extended.
HWY_INLINE hn::Vec<I32> bf16_bits_of_number(Vec32 value) {
  const I32 d;
  const auto odd = hn::And(hn::ShiftRight<16>(hn::BitCast(d, value)), hn::Set(d, 1));
  return hn::ShiftRight<16>(hn::Add(hn::BitCast(d, value), hn::Add(odd, hn::Set(d, 0x7fff))));
}

/// Two vectors without NaN.
HWY_INLINE void store_numbers(Vec32 low, Vec32 high, bf16* to) {
  const hn::Repartition<std::int16_t, F32> both;
  const auto packed =  // the lower half of `low`, that of `high`, the upper halves
      hn::ReorderDemote2To(both, bf16_bits_of_number(low), bf16_bits_of_number(high));
  alignas(32) static constexpr std::int32_t kOrder[] = {0, 1, 4, 5, 2, 3, 6, 7};
  const auto ordered =
      hn::TableLookupLanes(hn::BitCast(I32(), packed), hn::SetTableIndices(I32(), kOrder));
  hn::StoreU(hn::BitCast(both, ordered), both, reinterpret_cast<std::int16_t*>(to));
}
#endif

/// kCount vectors side by side, an even number of them: on AVX2 a narrowing of two costs what that
/// of one does, and one look finds a NaN in any.
template <int kCount>
HWY_INLINE void store(const Vec32 (&values)[kCount], bf16* to) {
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
#if HWY_TARGET == HWY_SCALAR
  for (int k = 0; k < kCount; ++k) store(values[k], to + k * kStep);
#else
#if HWY_TARGET == HWY_AVX2
  Vec32 sum = values[0];  // Of infinities it may be NaN too: they take the long way.
  for (int k = 1; k < kCount; ++k) sum = hn::Add(sum, values[k]);
  if (HWY_LIKELY(hn::AllTrue(F32(), hn::Eq(sum, sum)))) {
    for (int k = 0; k < kCount; k += 2) store_numbers(values[k], values[k + 1], to + k * kStep);
    return;
  }
#endif
  const hn::Repartition<std::uint16_t, F32> both;
  for (int k = 0; k < kCount; k += 2) {
    const auto narrow = hn::ConcatEven(both, hn::BitCast(both, bf16_bits(values[k + 1])),
                                       hn::BitCast(both, bf16_bits(values[k])));
    hn::StoreU(narrow, both, reinterpret_cast<std::uint16_t*>(to + k * kStep));
  }
#endif
}

HWY_INLINE void store(Vec32 value, f16* to) {
#if HWY_TARGET == HWY_SCALAR  // no conversion instructions
  HWY_ALIGN float wide[kLanes];
  hn::Store(value, F32(), wide);
  for (std::size_t i = 0; i < kLanes; ++i) to[i] = to_f16(wide[i]);
#else
  hn::StoreU(hn::DemoteTo(F16(), value), F16(), reinterpret_cast<hwy::float16_t*>(to));
#endif
}

/// What a store to T and a load would leave.
template <typename T>
HWY_INLINE Vec32 round_to(Vec32 value);
template <>
HWY_INLINE Vec32 round_to<float>(Vec32 value) {
  return value;
}
template <>
HWY_INLINE Vec32 round_to<bf16>(Vec32 value) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(bf16_bits(value)));
}
template <>
HWY_INLINE Vec32 round_to<f16>(Vec32 value) {
#if HWY_TARGET == HWY_SCALAR  // no conversion instructions
  f16 narrow[kLanes];
  store(value, narrow);
  return load(narrow);
#else
  return hn::PromoteTo(F32(), hn::DemoteTo(F16(), value));
#endif
}

// --- Loops over a row, whose last vector may be partial

struct AllLanes {};
struct SomeLanes {
  std::size_t count;
};

template <typename T>
HWY_INLINE Vec32 load(const T* from, AllLanes) {
  return load(from);
}
/// Lanes from `count` on are zero; nothing past the `count` elements is read.
template <typename T>
HWY_INLINE Vec32 load(const T* from, SomeLanes lanes) {
  HWY_ALIGN T padded[kLanes] = {};
  std::memcpy(padded, from, lanes.count * sizeof(T));
  return load(padded);
}
template <typename T>
HWY_INLINE void store(Vec32 value, T* to, AllLanes) {
  store(value, to);
}
template <typename T>
HWY_INLINE void store(Vec32 value, T* to, SomeLanes lanes) {
  HWY_ALIGN T padded[kLanes];
  store(value, padded);
  std::memcpy(to, padded, lanes.count * sizeof(T));
}
/// Zero in the lanes that the loop does not cover: for sums of values that are not zero there.
HWY_INLINE Vec32 keep(Vec32 value, AllLanes) { return value; }
HWY_INLINE Vec32 keep(Vec32 value, SomeLanes lanes) {
  return hn::IfThenElseZero(hn::FirstN(F32(), lanes.count), value);
}
/// `other` in the lanes that the loop does not cover.
HWY_INLINE Vec32 keep_or(Vec32 value, Vec32, AllLanes) { return value; }
HWY_INLINE Vec32 keep_or(Vec32 value, Vec32 other, SomeLanes lanes) {
  return hn::IfThenElse(hn::FirstN(F32(), lanes.count), value, other);
}

/// body(i, lanes) for i = 0, kLanes, ... below count.
template <typename Body>
HWY_INLINE void for_lanes(std::int64_t count, const Body& body) {
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) body(i, AllLanes{});
  if (i < count) body(i, SomeLanes{static_cast<std::size_t>(count - i)});
}

// --- Arithmetic

HWY_INLINE Vec32 set(float value) { return hn::Set(F32(), value); }
HWY_INLINE float sum_of_lanes(Vec32 value) { return hn::GetLane(hn::SumOfLanes(F32(), value)); }
HWY_INLINE float max_of_lanes(Vec32 value) { return hn::GetLane(hn::MaxOfLanes(F32(), value)); }

/// sums[s] = sum over i < count of what term(i, lanes, terms) leaves in terms[s] (zero in lanes
/// that are not covered). Four running sums each: one would wait for the adder.
template <int kSums, typename Term>
HWY_INLINE void sum_over(std::int64_t count, float* sums, const Term& term) {
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  Vec32 running[4][kSums];
  Vec32 terms[kSums];
  for (int u = 0; u < 4; ++u)
    for (int s = 0; s < kSums; ++s) running[u][s] = set(0);
  std::int64_t i = 0;
  for (; i + 4 * kStep <= count; i += 4 * kStep)
    for (int u = 0; u < 4; ++u) {
      term(i + u * kStep, AllLanes{}, terms);
      for (int s = 0; s < kSums; ++s) running[u][s] = hn::Add(running[u][s], terms[s]);
    }
  for_lanes(count - i, [&](std::int64_t j, auto lanes) HWY_ATTR {
    term(i + j, lanes, terms);
    for (int s = 0; s < kSums; ++s) running[0][s] = hn::Add(running[0][s], terms[s]);
  });
  for (int s = 0; s < kSums; ++s)
    sums[s] = sum_of_lanes(
        hn::Add(hn::Add(running[0][s], running[1][s]), hn::Add(running[2][s], running[3][s])));
}

/// e^x for x <= 88, below 1.5 units in the last place off; 0 below -87.3, where the result would be
/// subnormal; NaN stays NaN.
HWY_INLINE Vec32 exp(Vec32 x) {
  // x = n ln 2 + r. Adding 1.5 * 2^23 rounds to an integer; 127 more make the sum's low bits the
  // exponent field of 2^n.
  const Vec32 magic = set(12582912.0f + 127.0f);
  const Vec32 shifted = hn::MulAdd(x, set(1.44269504f), magic);
  const Vec32 n = hn::Sub(shifted, magic);
  const Vec32 power = hn::BitCast(F32(), hn::ShiftLeft<23>(hn::BitCast(U32(), shifted)));
  // ln 2 in two parts, n times the first being exact.
  const Vec32 r = hn::NegMulAdd(n, set(-2.12194440e-4f), hn::NegMulAdd(n, set(0.693359375f), x));
  // Minimax over |r| <= ln 2 / 2 with the first two coefficients exact.
  Vec32 p = set(1.381453988e-3f);
  p = hn::MulAdd(p, r, set(8.368745127e-3f));
  p = hn::MulAdd(p, r, set(4.166839079e-2f));
  p = hn::MulAdd(p, r, set(1.666652040e-1f));
  p = hn::MulAdd(p, r, set(4.999999343e-1f));
  p = hn::MulAdd(p, r, set(1.0f));
  p = hn::MulAdd(p, r, set(1.0f));
  return hn::IfThenZeroElse(hn::Lt(x, set(-87.3f)), hn::Mul(p, power));
}

/// body(T{}) with the T of `dtype`, one of f32, bf16, f16 (checked when the kernel was enqueued).
template <typename Body>
HWY_INLINE void with_type(DType dtype, const Body& body) {
  if (dtype == DType::f32) {
    body(float{});
  } else if (dtype == DType::bf16) {
    body(bf16{});
  } else {
    body(f16{});
  }
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
