// Philox4x32-10 for many counters at once, compiled once per instruction set: the words of
// RandomKey::word for a run of elements.
#include <cstdint>

#include "zero3d/core/random.h"

#if defined(ZERO3D_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERO3D_KERNELS_CPU_PHILOX_INL_H_
#undef ZERO3D_KERNELS_CPU_PHILOX_INL_H_
#else
#define ZERO3D_KERNELS_CPU_PHILOX_INL_H_
#endif

#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

/// fill_words writes whole vectors: up to this many words past those asked for.
inline constexpr std::size_t kWordSlack = 4 * (kLanes / 2 + 1);

/// words[i] = key.word(sample, 4 * block + i) for i < 4 * blocks.
#if HWY_TARGET == HWY_SCALAR
inline void fill_words(const RandomKey& key, std::uint64_t sample, std::uint64_t block,
                       std::int64_t blocks, std::uint32_t* words) {
  for (std::uint64_t i = 0; i < 4 * static_cast<std::uint64_t>(blocks); ++i)
    words[i] = key.word(sample, 4 * block + i);
}
#else
// One counter per 64-bit lane, a word in its low half: the widening multiply reads low halves
// only, so what a shift or xor leaves above them is harmless.
inline void fill_words(const RandomKey& key, std::uint64_t sample, std::uint64_t block,
                       std::int64_t blocks, std::uint32_t* words) {
  const hn::ScalableTag<std::uint64_t> d;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  const auto product = [&](auto a, auto b) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
  };
  const auto kLow = hn::Set(d, std::uint64_t{0xffffffffu});
  const auto m0 = hn::Set(d, std::uint64_t{0xD2511F53u});
  const auto m1 = hn::Set(d, std::uint64_t{0xCD9E8D57u});
  const auto seed_low = static_cast<std::uint32_t>(key.seed);
  const auto seed_high = static_cast<std::uint32_t>(key.seed >> 32);
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < blocks; i += step) {
    // The block count fits 32 bits: word() keeps only the low half of element / 4.
    auto c0 = hn::Iota(d, block + static_cast<std::uint64_t>(i));
    auto c1 = hn::Set(d, sample & 0xffffffffu);
    auto c2 = hn::Set(d, sample >> 32);
    auto c3 = hn::Set(d, std::uint64_t{key.layer});
    std::uint32_t k0 = seed_low ^ (seed_high * 0x85EBCA6Bu);
    std::uint32_t k1 = key.step;
    for (int round = 0; round < 10; ++round) {
      const auto p0 = product(c0, m0);
      const auto p1 = product(c2, m1);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, std::uint64_t{k0}));
      c1 = p1;
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, std::uint64_t{k1}));
      c3 = p0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const auto first = hn::Or(hn::And(c0, kLow), hn::ShiftLeft<32>(c1));
    const auto second = hn::Or(hn::And(c2, kLow), hn::ShiftLeft<32>(c3));
    hn::StoreInterleaved2(first, second, d, reinterpret_cast<std::uint64_t*>(words + 4 * i));
  }
}

#endif

/// All-ones in the lanes whose number to_uniform(word) is at least p.
HWY_INLINE hn::Mask<F32> kept(const std::uint32_t* words, float p) {
  const hn::Rebind<std::int32_t, F32> di;
  const auto high = hn::BitCast(di, hn::ShiftRight<8>(hn::LoadU(U32(), words)));
  const Vec32 uniform =
      hn::Mul(hn::Add(hn::ConvertTo(F32(), high), set(0.5f)), set(1.0f / 16777216.0f));
  return hn::Ge(uniform, set(p));
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
