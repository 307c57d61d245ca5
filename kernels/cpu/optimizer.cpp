// The update loops, compiled once per instruction set by Highway, and the choice among them.
#include "zero3d/kernels/cpu/optimizer.h"

#include <algorithm>
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

struct Pointers {
  float* master;
  const float* gradient;
  float* states[3];
};

template <class Body, class Lanes>
HWY_INLINE void update_lanes(const Body& body, const Pointers& at, std::int64_t i, Lanes lanes) {
  const Vec32 zero = set(0);
  Vec32 p = zero, s0 = zero, s1 = zero, s2 = zero;
  if constexpr (Body::kMaster != Use::none) p = load(at.master + i, lanes);
  const Vec32 g = load(at.gradient + i, lanes);
  if constexpr ((Body::kLoads & 1u) != 0) s0 = load(at.states[0] + i, lanes);
  if constexpr ((Body::kLoads & 2u) != 0) s1 = load(at.states[1] + i, lanes);
  if constexpr ((Body::kLoads & 4u) != 0) s2 = load(at.states[2] + i, lanes);
  body(p, g, s0, s1, s2);
  if constexpr ((Body::kStores & 1u) != 0) store(s0, at.states[0] + i, lanes);
  if constexpr ((Body::kStores & 2u) != 0) store(s1, at.states[1] + i, lanes);
  if constexpr ((Body::kStores & 4u) != 0) store(s2, at.states[2] + i, lanes);
  if constexpr (Body::kMaster == Use::update) store(p, at.master + i, lanes);
}

/// Bytes that the loops ask for ahead of what they read: enough to keep memory busy during
/// divisions and roots, and less than arrays are apart modulo a page (Stagger::kLines), which would
/// otherwise evict each other's.
inline constexpr std::int64_t kAhead = 384;

HWY_INLINE void prefetch(const float* data) {
  hwy::Prefetch(reinterpret_cast<const std::byte*>(data) + kAhead);
}

template <class Body>
HWY_INLINE void prefetch(const Pointers& at, std::int64_t i) {
  if constexpr (Body::kMaster != Use::none) prefetch(at.master + i);
  prefetch(at.gradient + i);
  for (unsigned s = 0; s < 3; ++s)
    if (Body::kLoads >> s & 1u) prefetch(at.states[s] + i);
}

template <class Body>
HWY_INLINE void update_block(const Body& body, const Pointers& at, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(float);
  std::int64_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    prefetch<Body>(at, i);
    for (std::int64_t j = i; j < i + kLine; j += static_cast<std::int64_t>(kLanes))
      update_lanes(body, at, j, AllLanes{});
  }
  for_lanes(count - i,
            [&](std::int64_t j, auto lanes) HWY_ATTR { update_lanes(body, at, i + j, lanes); });
}

template <class Body, class Constants>
void loop(const Constants& constants, const ElementArrays& arrays, std::int64_t begin,
          std::int64_t end) {
  alignas(64) float buffers[5][kUpdateBlock];
  const Body body{constants};
  for (std::int64_t first = begin; first < end; first += kUpdateBlock) {
    const std::int64_t count = std::min(end - first, kUpdateBlock);
    Pointers at{};
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
  static constexpr cpu::UpdateLoops kTable = {loop<AdamBody<true>, AdamConstants>,
                                              loop<AdamBody<false>, AdamConstants>,
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
