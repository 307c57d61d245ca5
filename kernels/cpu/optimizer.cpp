// The update loops, compiled once per instruction set by Highway, and the choice among them.
#include "zero3d/kernels/cpu/optimizer.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/optimizer.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/optimizer_rules-inl.h"
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

/// Elements fed to a body at a time: f32 arrays in place, others by way of buffers that stay in the
/// first-level cache.
inline constexpr std::int64_t kUpdateBlock = 512;

struct NoCopy {};
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
  if constexpr (std::is_same_v<T, f16>) return DType::f16;
  return DType::f32;
}

template <class From, class To>
void convert_block(const From* from, To* to, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, auto lanes)
                       HWY_ATTR { store(load(from + i, lanes), to + i, lanes); });
}

/// Elements [begin, begin + count) as floats: the array's own, or a copy in `buffer`.
inline float* open(const Array& array, std::int64_t begin, std::int64_t count, float* buffer,
                   bool load_them) {
  if (array.dtype == DType::f32) return reinterpret_cast<float*>(array.data) + begin;
  if (!load_them) return buffer;
  if (array.dtype == DType::bf16)
    convert_block(reinterpret_cast<const bf16*>(array.data) + begin, buffer, count);
  else
    convert_block(reinterpret_cast<const f16*>(array.data) + begin, buffer, count);
  return buffer;
}

/// Writes back what open() gave, when that was a copy.
inline void close(const Array& array, std::int64_t begin, std::int64_t count, const float* from) {
  if (array.dtype == DType::bf16)
    convert_block(from, reinterpret_cast<bf16*>(array.data) + begin, count);
  else if (array.dtype == DType::f16)
    convert_block(from, reinterpret_cast<f16*>(array.data) + begin, count);
  else if (reinterpret_cast<float*>(array.data) + begin != from)
    convert_block(from, reinterpret_cast<float*>(array.data) + begin, count);
}

/// Where a block's elements lie, and where its master is copied to (nowhere: null).
template <class Gradient, class Copy>
struct Pointers {
  float* master;
  const Gradient* gradient;
  float* states[3];
  Copy* copy;
};

/// n vectors from element i on; `lanes` of them where n is 1.
template <int n, class T, class Lanes>
HWY_INLINE Wide<n> load_wide(const T* from, std::int64_t i, Lanes lanes) {
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  return each<n>([&](int k) HWY_ATTR { return load(from + i + k * kStep, lanes); });
}
template <int n, class T, class Lanes>
HWY_INLINE void store_wide(const Wide<n>& values, T* to, std::int64_t i, Lanes lanes) {
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  if constexpr (std::is_same_v<T, bf16> && std::is_same_v<Lanes, AllLanes> && n % 2 == 0) {
    store(values.v, to + i);
  } else {
    for (int k = 0; k < n; ++k) store(values.v[k], to + i + k * kStep, lanes);
  }
}

/// Writes the copy, if there is one, of n vectors of the master from element i on.
template <int n, class Gradient, class Copy, class Lanes>
HWY_INLINE void copy_lanes(const Pointers<Gradient, Copy>& at, std::int64_t i, Lanes lanes) {
  if constexpr (!std::is_same_v<Copy, NoCopy>)
    store_wide(load_wide<n>(at.master, i, lanes), at.copy, i, lanes);
}

template <int n, class Body, class At, class Lanes>
HWY_INLINE void update_lanes(const Body& body, const At& at, std::int64_t i, Lanes lanes) {
  const Wide<n> zero = each<n>([](int) HWY_ATTR { return set(0); });
  Wide<n> p = zero, s0 = zero, s1 = zero, s2 = zero;
  if constexpr (Body::kMaster != Use::none) p = load_wide<n>(at.master, i, lanes);
  const Wide<n> g = load_wide<n>(at.gradient, i, lanes);
  if constexpr ((Body::kLoads & 1u) != 0) s0 = load_wide<n>(at.states[0], i, lanes);
  if constexpr ((Body::kLoads & 2u) != 0) s1 = load_wide<n>(at.states[1], i, lanes);
  if constexpr ((Body::kLoads & 4u) != 0) s2 = load_wide<n>(at.states[2], i, lanes);
  body(p, g, s0, s1, s2);
  if constexpr ((Body::kStores & 1u) != 0) store_wide(s0, at.states[0], i, lanes);
  if constexpr ((Body::kStores & 2u) != 0) store_wide(s1, at.states[1], i, lanes);
  if constexpr ((Body::kStores & 4u) != 0) store_wide(s2, at.states[2], i, lanes);
  if constexpr (Body::kMaster == Use::update) store_wide(p, at.master, i, lanes);
}

/// Bytes that the loops ask for ahead of what they read: enough to keep memory busy during
/// divisions and roots, and less than arrays are apart modulo a page (Stagger::kLines), which would
/// otherwise evict each other's.
inline constexpr std::int64_t kAhead = 384;

/// Two lines of fp32.
inline constexpr std::int64_t kStride = 2 * 64 / sizeof(float);

template <class T>
HWY_INLINE void prefetch(const T* data) {
  const auto* ahead = reinterpret_cast<const std::byte*>(data) + kAhead;
  hwy::Prefetch(ahead);
  if (sizeof(T) == sizeof(float)) hwy::Prefetch(ahead + 64);
}

template <class Body, class At>
HWY_INLINE void prefetch(const At& at, std::int64_t i) {
  if constexpr (Body::kMaster != Use::none) prefetch(at.master + i);
  prefetch(at.gradient + i);
  for (unsigned s = 0; s < 3; ++s)
    if (Body::kLoads >> s & 1u) prefetch(at.states[s] + i);
}

/// The copy is written one stride behind the update: its conversions then wait for no division.
template <class Body, class Gradient, class Copy>
HWY_INLINE void update_block(const Body& body, const Pointers<Gradient, Copy>& at,
                             std::int64_t count) {
  // Measured with AVX2: one by one 17.8 GB/s, two 19.5, four 19.8.
  constexpr int kSideBySide = kLanes >= 16 ? 2 : kLanes >= 4 ? 4 : 1;
  constexpr auto kStep = static_cast<std::int64_t>(kLanes * kSideBySide);
  const auto copy_stride = [&](std::int64_t begin) HWY_ATTR {
    for (std::int64_t j = begin; j < begin + kStride; j += kStep)
      copy_lanes<kSideBySide>(at, j, AllLanes{});
  };
  std::int64_t i = 0;
  for (; i + kStride <= count; i += kStride) {
    prefetch<Body>(at, i);
    for (std::int64_t j = i; j < i + kStride; j += kStep)
      update_lanes<kSideBySide>(body, at, j, AllLanes{});
    if (i > 0) copy_stride(i - kStride);
  }
  if (i > 0) copy_stride(i - kStride);
  for_lanes(count - i, [&](std::int64_t j, auto lanes) HWY_ATTR {
    update_lanes<1>(body, at, i + j, lanes);
    copy_lanes<1>(at, i + j, lanes);
  });
}

/// The arrays a rule touches as floats, block by block.
template <class Body, class Constants>
void loop(const Constants& constants, const ElementArrays& arrays, std::int64_t begin,
          std::int64_t end) {
  alignas(64) float buffers[5][kUpdateBlock];
  const Body body{constants};
  for (std::int64_t first = begin; first < end; first += kUpdateBlock) {
    const std::int64_t count = std::min(end - first, kUpdateBlock);
    Pointers<float, NoCopy> at{};
    if constexpr (Body::kMaster != Use::none)
      at.master = open(arrays.master, first, count, buffers[0], true);
    at.gradient = open(arrays.gradient, first, count, buffers[1], true);
    for (unsigned s = 0; s < 3; ++s)
      if ((Body::kLoads | Body::kStores) >> s & 1u)
        at.states[s] = open(arrays.states[s], first, count, buffers[2 + s], Body::kLoads >> s & 1u);
    update_block(body, at, count);
    for (unsigned s = 0; s < 3; ++s)
      if (Body::kStores >> s & 1u) close(arrays.states[s], first, count, at.states[s]);
    if constexpr (Body::kMaster == Use::update) {
      close(arrays.master, first, count, at.master);
      if (arrays.copy.data == nullptr) continue;
      if (is_16bit(arrays.master.dtype)) open(arrays.master, first, count, at.master, true);
      close(arrays.copy, first, count, at.master);
    }
  }
}

/// Adam where the states are fp32 and the gradient and the copy have these types: nothing passes
/// through a buffer.
template <bool kDecoupled, class Gradient, class Copy>
bool adam_in_place(const AdamConstants& constants, const ElementArrays& arrays, std::int64_t begin,
                   std::int64_t end) {
  constexpr bool kCopies = !std::is_same_v<Copy, NoCopy>;
  if (kCopies != (arrays.copy.data != nullptr)) return false;
  for (const Array* array : {&arrays.master, &arrays.states[0], &arrays.states[1]})
    if (array->dtype != DType::f32) return false;
  if (arrays.gradient.dtype != dtype_of<Gradient>()) return false;
  if (kCopies && arrays.copy.dtype != dtype_of<Copy>()) return false;
  const auto floats = [begin](const Array& array) {
    return reinterpret_cast<float*>(array.data) + begin;
  };
  Pointers<Gradient, Copy> at{};
  at.master = floats(arrays.master);
  at.gradient = reinterpret_cast<const Gradient*>(arrays.gradient.data) + begin;
  at.states[0] = floats(arrays.states[0]);
  at.states[1] = floats(arrays.states[1]);
  if constexpr (kCopies) at.copy = reinterpret_cast<Copy*>(arrays.copy.data) + begin;
  update_block(AdamBody<kDecoupled>{constants}, at, end - begin);
  return true;
}

template <bool kDecoupled>
void adam_loop(const AdamConstants& constants, const ElementArrays& arrays, std::int64_t begin,
               std::int64_t end) {
  if (adam_in_place<kDecoupled, float, NoCopy>(constants, arrays, begin, end) ||
      adam_in_place<kDecoupled, float, bf16>(constants, arrays, begin, end) ||
      adam_in_place<kDecoupled, bf16, bf16>(constants, arrays, begin, end) ||
      adam_in_place<kDecoupled, f16, f16>(constants, arrays, begin, end))
    return;
  loop<AdamBody<kDecoupled>>(constants, arrays, begin, end);
}

/// a xor (b and mask), bit by bit.
HWY_INLINE Vec32 xor_masked(Vec32 a, Vec32 b, std::uint32_t mask) {
  const U32 d;
  const auto masked = hn::And(hn::BitCast(d, b), hn::Set(d, mask));
  return hn::BitCast(F32(), hn::Xor(hn::BitCast(d, a), masked));
}

/// The streams of an Adam update with nothing computed: a ceiling must not pay for conversions
/// either, so a 16-bit array moves as half as many floats.
inline void null_loop(const NullConstants& c, const ElementArrays& arrays, std::int64_t begin,
                      std::int64_t end) {
  constexpr auto kLane = static_cast<std::int64_t>(kLanes);
  float* const full[3] = {reinterpret_cast<float*>(arrays.master.data),
                          reinterpret_cast<float*>(arrays.states[0].data),
                          reinterpret_cast<float*>(arrays.states[1].data)};
  const bool narrow_gradient = arrays.gradient.dtype != DType::f32;
  const bool narrow_copy = arrays.copy.dtype != DType::f32;
  const auto* gradient = reinterpret_cast<const float*>(arrays.gradient.data);
  auto* copy = reinterpret_cast<float*>(arrays.copy.data);
  for (std::int64_t i = begin; i + 2 * kLane <= end; i += 2 * kLane) {
    const std::int64_t at = narrow_gradient ? i / 2 : i;
    const Vec32 g0 = load(gradient + at);
    const Vec32 g1 = narrow_gradient ? g0 : load(gradient + at + kLane);
    for (float* array : full) {
      store(xor_masked(load(array + i), g0, c.zero), array + i);
      store(xor_masked(load(array + i + kLane), g1, c.zero), array + i + kLane);
    }
    if (copy == nullptr) continue;
    const std::int64_t to = narrow_copy ? i / 2 : i;
    store(g0, copy + to);
    if (!narrow_copy) store(g1, copy + to + kLane);
  }
}

const cpu::UpdateLoops& table() {
  static constexpr cpu::UpdateLoops kTable = {adam_loop<true>,
                                              adam_loop<false>,
                                              loop<LionBody, LionConstants>,
                                              loop<AdagradBody, AdagradConstants>,
                                              loop<SgdBody<false>, SgdConstants>,
                                              loop<SgdBody<true>, SgdConstants>,
                                              loop<RmspropBody<false, false>, RmspropConstants>,
                                              loop<RmspropBody<false, true>, RmspropConstants>,
                                              loop<RmspropBody<true, false>, RmspropConstants>,
                                              loop<RmspropBody<true, true>, RmspropConstants>,
                                              loop<LambBody, LambConstants>,
                                              loop<DescentBody, DescentConstants>,
                                              loop<BlendBody, BlendConstants>,
                                              null_loop};
  return kTable;
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {
namespace {

/// Elements of one chunk: large enough to hide a task's start, small enough to balance; a multiple
/// of the norm's block.
constexpr std::int64_t kChunk = 32768;

struct Target {
  Isa isa;
  std::int64_t highway_target;
  const cpu::UpdateLoops& (*table)();
};

/// Slowest first.
const std::vector<Target>& compiled_targets() {
  static const std::vector<Target> targets = {
#if HWY_TARGETS & HWY_SCALAR
    {Isa::scalar, HWY_SCALAR, &N_SCALAR::table},
#endif
#if HWY_TARGETS & HWY_NEON
    {Isa::neon, HWY_NEON, &N_NEON::table},
#endif
#if HWY_TARGETS & HWY_AVX2
    {Isa::avx2, HWY_AVX2, &N_AVX2::table},
#endif
#if HWY_TARGETS & HWY_AVX3
    {Isa::avx512, HWY_AVX3, &N_AVX3::table},
#endif
  };
  return targets;
}

/// body(slice, begin, end) over chunks of all slices.
template <typename Body>
void over_chunks(const std::vector<ElementArrays>& slices, const Body& body) {
  struct Chunk {
    std::size_t slice;
    std::int64_t begin, end;
  };
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    for (std::int64_t begin = 0; begin < slices[i].numel; begin += kChunk)
      chunks.push_back({i, begin, std::min(slices[i].numel, begin + kChunk)});
  }
  parallel_for(static_cast<std::int64_t>(chunks.size()), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t c = begin; c < end; ++c) {
                   const Chunk& chunk = chunks[static_cast<std::size_t>(c)];
                   body(chunk.slice, chunk.begin, chunk.end);
                 }
               });
}

cpu::UpdateLoop<AdamConstants> loop_of(const cpu::UpdateLoops& loops, const AdamConstants& c) {
  return c.decoupled ? loops.adam_decoupled : loops.adam_classic;
}
cpu::UpdateLoop<LionConstants> loop_of(const cpu::UpdateLoops& loops, const LionConstants&) {
  return loops.lion;
}
cpu::UpdateLoop<AdagradConstants> loop_of(const cpu::UpdateLoops& loops, const AdagradConstants&) {
  return loops.adagrad;
}
cpu::UpdateLoop<SgdConstants> loop_of(const cpu::UpdateLoops& loops, const SgdConstants& c) {
  return c.has_momentum ? loops.sgd_momentum : loops.sgd;
}
cpu::UpdateLoop<RmspropConstants> loop_of(const cpu::UpdateLoops& loops,
                                          const RmspropConstants& c) {
  if (c.centered) return c.has_momentum ? loops.rmsprop_centered_momentum : loops.rmsprop_centered;
  return c.has_momentum ? loops.rmsprop_momentum : loops.rmsprop;
}
cpu::UpdateLoop<LambConstants> loop_of(const cpu::UpdateLoops& loops, const LambConstants&) {
  return loops.lamb;
}
cpu::UpdateLoop<DescentConstants> loop_of(const cpu::UpdateLoops& loops, const DescentConstants&) {
  return loops.descent;
}
cpu::UpdateLoop<BlendConstants> loop_of(const cpu::UpdateLoops& loops, const BlendConstants&) {
  return loops.blend;
}
cpu::UpdateLoop<NullConstants> loop_of(const cpu::UpdateLoops& loops, const NullConstants&) {
  return loops.null_update;
}

}  // namespace

template <typename Constants>
void cpu::update(const UpdateArgs<Constants>& args) {
  const UpdateLoop<Constants> loop = loop_of(update_loops(args.isa), args.constants);
  over_chunks(args.slices, [&](std::size_t slice, std::int64_t begin, std::int64_t end) {
    loop(args.constants, args.slices[slice], begin, end);
  });
}
template void cpu::update(const UpdateArgs<AdamConstants>&);
template void cpu::update(const UpdateArgs<LionConstants>&);
template void cpu::update(const UpdateArgs<AdagradConstants>&);
template void cpu::update(const UpdateArgs<SgdConstants>&);
template void cpu::update(const UpdateArgs<RmspropConstants>&);
template void cpu::update(const UpdateArgs<LambConstants>&);
template void cpu::update(const UpdateArgs<DescentConstants>&);
template void cpu::update(const UpdateArgs<BlendConstants>&);
template void cpu::update(const UpdateArgs<NullConstants>&);

void cpu::lamb_step(const LambStepArgs& args) {
  const UpdateLoop<DescentConstants> loop = update_loops(args.isa).descent;
  over_chunks(args.slices, [&](std::size_t slice, std::int64_t begin, std::int64_t end) {
    const double* squares = args.squares[slice];
    const double ratio = trust_ratio(args.constants, squares[0], squares[1]);
    loop({static_cast<float>(args.constants.step_size * ratio), 0.0f}, args.slices[slice], begin,
         end);
  });
}

const cpu::UpdateLoops& cpu::update_loops(Isa isa) {
  for (const Target& target : compiled_targets())
    if (target.isa == isa) return target.table();
  throw_invalid(concat("instruction set ", name_of(isa), " is not compiled in"));
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Target& target : compiled_targets()) {
    if (target.isa == Isa::scalar || (hwy::SupportedTargets() & target.highway_target) != 0)
      isas.push_back(target.isa);
  }
  return isas;
}

}  // namespace zero3d::kernels
#endif  // HWY_ONCE
