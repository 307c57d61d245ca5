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

/// fill_words writes pairs of vectors: up to this many words past those asked for.
inline constexpr std::size_t kWordSlack = 4 * (kLanes + 1);

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
  using V = hn::Vec<decltype(d)>;
  V round_keys[10][2];
  std::uint32_t k0 = seed_low ^ (seed_high * 0x85EBCA6Bu);
  std::uint32_t k1 = key.step;
  for (auto& round_key : round_keys) {
    round_key[0] = hn::Set(d, std::uint64_t{k0});
    round_key[1] = hn::Set(d, std::uint64_t{k1});
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const V sample_low = hn::Set(d, sample & 0xffffffffu), sample_high = hn::Set(d, sample >> 32);
  const V layer = hn::Set(d, std::uint64_t{key.layer});
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  // Two vectors of counters at a time: the rounds of one wait for its multiplications.
  for (std::int64_t i = 0; i < blocks; i += 2 * step) {
    V c0[2], c1[2], c2[2], c3[2];
    for (int u = 0; u < 2; ++u) {
      // Carries above 32 bits are ignored, as word() keeps the low half of element / 4.
      c0[u] = hn::Iota(d, block + static_cast<std::uint64_t>(i + u * step));
      c1[u] = sample_low;
      c2[u] = sample_high;
      c3[u] = layer;
    }
    for (const auto& round_key : round_keys)
      for (int u = 0; u < 2; ++u) {
        const V p0 = product(c0[u], m0);
        const V p1 = product(c2[u], m1);
        c0[u] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1[u]), round_key[0]);
        c1[u] = p1;
        c2[u] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3[u]), round_key[1]);
        c3[u] = p0;
      }
    for (int u = 0; u < 2; ++u) {
      const V first = hn::Or(hn::And(c0[u], kLow), hn::ShiftLeft<32>(c1[u]));
      const V second = hn::Or(hn::And(c2[u], kLow), hn::ShiftLeft<32>(c3[u]));
      hn::StoreInterleaved2(first, second, d,
                            reinterpret_cast<std::uint64_t*>(words + 4 * (i + u * step)));
    }
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
