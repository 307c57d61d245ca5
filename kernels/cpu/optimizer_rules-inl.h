// The update rules, written once and compiled once per instruction set: each body is one sequence
// of IEEE operations on vectors, without fused multiply-add.
//
// A body states which arrays it touches: kMaster, kLoads and kStores (bit i: state i). It is given
// master, gradient and states by reference, and changes what it stores.
#include "zero3d/kernels/optimizer.h"

#if defined(ZERO3D_KERNELS_CPU_OPTIMIZER_RULES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERO3D_KERNELS_CPU_OPTIMIZER_RULES_INL_H_
#undef ZERO3D_KERNELS_CPU_OPTIMIZER_RULES_INL_H_
#else
#define ZERO3D_KERNELS_CPU_OPTIMIZER_RULES_INL_H_
#endif

#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

enum class Use { none, read, update };

/// average = beta * average + (1 - beta) * value, as (average - c * average) + c * value with c = 1
/// - beta: a beta near 1 loses digits when rounded to fp32 (0.999 shifts a second moment by 1e-6 in
/// a hundred steps), 1 - beta does not; and beta = 0 still gives the value itself.
HWY_INLINE Vec32 moving_average(Vec32 average, Vec32 value, float c) {
  const Vec32 take = set(c);
  return hn::Add(hn::Sub(average, hn::Mul(take, average)), hn::Mul(take, value));
}

template <bool kDecoupled>
struct AdamBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 3, kStores = 3;
  const AdamConstants& c;

  HWY_INLINE void operator()(Vec32& p, Vec32 g, Vec32& m, Vec32& v, Vec32&) const {
    g = hn::Mul(g, set(c.factor));
    if constexpr (!kDecoupled) g = hn::Add(g, hn::Mul(set(c.decay), p));
    m = moving_average(m, g, c.one_minus_beta1);
    v = moving_average(v, hn::Mul(g, g), c.one_minus_beta2);
    const Vec32 denominator =
        hn::Add(hn::Mul(hn::Sqrt(v), set(c.inverse_root_correction2)), set(c.eps));
    Vec32 step = hn::Mul(set(c.step_size), hn::Div(m, denominator));
    if constexpr (kDecoupled) step = hn::Add(step, hn::Mul(set(c.decay), p));
    p = hn::Sub(p, step);
  }
};

struct LionBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 1, kStores = 1;
  const LionConstants& c;

  HWY_INLINE void operator()(Vec32& p, Vec32 g, Vec32& m, Vec32&, Vec32&) const {
    g = hn::Mul(g, set(c.factor));
    const Vec32 blend = moving_average(m, g, c.one_minus_beta1);
    const Vec32 step = hn::IfThenElse(hn::Lt(blend, set(0)), set(-c.lr), set(c.lr));
    p = hn::Sub(p, hn::Add(step, hn::Mul(set(c.decay), p)));
    m = moving_average(m, g, c.one_minus_beta2);
  }
};

struct AdagradBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 1, kStores = 1;
  const AdagradConstants& c;

  HWY_INLINE void operator()(Vec32& p, Vec32 g, Vec32& sum, Vec32&, Vec32&) const {
    g = hn::Add(hn::Mul(g, set(c.factor)), hn::Mul(set(c.weight_decay), p));
    sum = hn::Add(sum, hn::Mul(g, g));
    p = hn::Sub(p, hn::Mul(set(c.lr), hn::Div(g, hn::Add(hn::Sqrt(sum), set(c.eps)))));
  }
};

template <bool kMomentum>
struct SgdBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = kMomentum ? 1 : 0, kStores = kLoads;
  const SgdConstants& c;

  HWY_INLINE void operator()(Vec32& p, Vec32 g, Vec32& buffer, Vec32&, Vec32&) const {
    g = hn::Add(hn::Mul(g, set(c.factor)), hn::Mul(set(c.weight_decay), p));
    if constexpr (kMomentum) {
      buffer = hn::Add(hn::Mul(set(c.momentum), buffer), hn::Mul(set(c.take), g));
      g = c.nesterov ? hn::Add(g, hn::Mul(set(c.momentum), buffer)) : buffer;
    }
    p = hn::Sub(p, hn::Mul(set(c.lr), g));
  }
};

template <bool kCentered, bool kMomentum>
struct RmspropBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = kCentered && kMomentum ? 7 : kCentered || kMomentum ? 3 : 1;
  static constexpr unsigned kStores = kLoads;
  const RmspropConstants& c;

  HWY_INLINE void operator()(Vec32& p, Vec32 g, Vec32& square, Vec32& second, Vec32& third) const {
    g = hn::Add(hn::Mul(g, set(c.factor)), hn::Mul(set(c.weight_decay), p));
    square = moving_average(square, hn::Mul(g, g), c.one_minus_alpha);
    Vec32 variance = square;
    if constexpr (kCentered) {
      Vec32& average = kMomentum ? third : second;
      average = moving_average(average, g, c.one_minus_alpha);
      variance = hn::Sub(square, hn::Mul(average, average));
    }
    Vec32 step = hn::Div(g, hn::Add(hn::Sqrt(variance), set(c.eps)));
    if constexpr (kMomentum) step = second = hn::Add(hn::Mul(set(c.momentum), second), step);
    p = hn::Sub(p, hn::Mul(set(c.lr), step));
  }
};

struct LambBody {
  static constexpr Use kMaster = Use::read;
  static constexpr unsigned kLoads = 3, kStores = 7;
  const LambConstants& c;

  HWY_INLINE void operator()(Vec32& p, Vec32 g, Vec32& m, Vec32& v, Vec32& direction) const {
    g = hn::Mul(g, set(c.factor));
    m = moving_average(m, g, c.one_minus_beta1);
    v = moving_average(v, hn::Mul(g, g), c.one_minus_beta2);
    const Vec32 denominator =
        c.eps_inside_root ? hn::Sqrt(hn::Add(v, set(c.eps))) : hn::Add(hn::Sqrt(v), set(c.eps));
    direction = hn::Add(hn::Div(m, denominator), hn::Mul(set(c.weight_decay), p));
  }
};

struct DescentBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 0, kStores = 0;
  const DescentConstants& c;

  HWY_INLINE void operator()(Vec32& p, Vec32 g, Vec32&, Vec32&, Vec32&) const {
    p = hn::Sub(p, hn::Add(hn::Mul(set(c.rate), g), hn::Mul(set(c.decay), p)));
  }
};

struct BlendBody {
  static constexpr Use kMaster = Use::none;
  static constexpr unsigned kLoads = 1, kStores = 3;
  const BlendConstants& c;

  HWY_INLINE void operator()(Vec32&, Vec32 g, Vec32& momentum, Vec32& blend, Vec32&) const {
    const Vec32 fresh = hn::Mul(set(c.one_minus_momentum), hn::Mul(g, set(c.factor)));
    momentum = hn::Add(hn::Mul(set(c.momentum), momentum), fresh);
    blend = hn::Add(fresh, hn::Mul(set(c.momentum), momentum));
  }
};

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
