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

/// Vectors that a body works on side by side, one operation on all of them after the other:
/// divisions and roots of one pass while those of the next begin.
template <int kCount>
struct Wide {
  Vec32 v[kCount];
};

template <int kCount, class Operation>
HWY_INLINE Wide<kCount> each(const Operation& operation) {
  Wide<kCount> result;
  for (int i = 0; i < kCount; ++i) result.v[i] = operation(i);
  return result;
}

#define ZERO3D_WIDE_OPERATION(symbol, function)                                   \
  template <int n>                                                                \
  HWY_INLINE Wide<n> operator symbol(const Wide<n>& a, const Wide<n>& b) {        \
    return each<n>([&](int i) HWY_ATTR { return hn::function(a.v[i], b.v[i]); }); \
  }                                                                               \
  template <int n>                                                                \
  HWY_INLINE Wide<n> operator symbol(const Wide<n>& a, float b) {                 \
    return each<n>([&](int i) HWY_ATTR { return hn::function(a.v[i], set(b)); }); \
  }                                                                               \
  template <int n>                                                                \
  HWY_INLINE Wide<n> operator symbol(float a, const Wide<n>& b) {                 \
    return each<n>([&](int i) HWY_ATTR { return hn::function(set(a), b.v[i]); }); \
  }
ZERO3D_WIDE_OPERATION(+, Add)
ZERO3D_WIDE_OPERATION(-, Sub)
ZERO3D_WIDE_OPERATION(*, Mul)
ZERO3D_WIDE_OPERATION(/, Div)
#undef ZERO3D_WIDE_OPERATION

template <int n>
HWY_INLINE Wide<n> root(const Wide<n>& a) {
  return each<n>([&](int i) HWY_ATTR { return hn::Sqrt(a.v[i]); });
}

/// average = beta * average + (1 - beta) * value, as (average - c * average) + c * value with c = 1
/// - beta: a beta near 1 loses digits when rounded to fp32 (0.999 shifts a second moment by 1e-6 in
/// a hundred steps), 1 - beta does not; and beta = 0 still gives the value itself.
template <int n>
HWY_INLINE Wide<n> moving_average(const Wide<n>& average, const Wide<n>& value, float c) {
  return (average - c * average) + c * value;
}

template <bool kDecoupled>
struct AdamBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 3, kStores = 3;
  const AdamConstants& c;

  template <int n>
  HWY_INLINE void operator()(Wide<n>& p, Wide<n> g, Wide<n>& m, Wide<n>& v, Wide<n>&) const {
    g = g * c.factor;
    if constexpr (!kDecoupled) g = g + c.decay * p;
    m = moving_average(m, g, c.one_minus_beta1);
    v = moving_average(v, g * g, c.one_minus_beta2);
    const Wide<n> denominator = root(v) * c.inverse_root_correction2 + c.eps;
    Wide<n> step = c.step_size * (m / denominator);
    if constexpr (kDecoupled) step = step + c.decay * p;
    p = p - step;
  }
};

struct LionBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 1, kStores = 1;
  const LionConstants& c;

  template <int n>
  HWY_INLINE void operator()(Wide<n>& p, Wide<n> g, Wide<n>& m, Wide<n>&, Wide<n>&) const {
    g = g * c.factor;
    const Wide<n> blend = moving_average(m, g, c.one_minus_beta1);
    const Wide<n> step = each<n>([&](int i) HWY_ATTR {
      return hn::IfThenElse(hn::Lt(blend.v[i], set(0)), set(-c.lr), set(c.lr));
    });
    p = p - (step + c.decay * p);
    m = moving_average(m, g, c.one_minus_beta2);
  }
};

struct AdagradBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 1, kStores = 1;
  const AdagradConstants& c;

  template <int n>
  HWY_INLINE void operator()(Wide<n>& p, Wide<n> g, Wide<n>& sum, Wide<n>&, Wide<n>&) const {
    g = g * c.factor + c.weight_decay * p;
    sum = sum + g * g;
    p = p - c.lr * (g / (root(sum) + c.eps));
  }
};

template <bool kMomentum>
struct SgdBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = kMomentum ? 1 : 0, kStores = kLoads;
  const SgdConstants& c;

  template <int n>
  HWY_INLINE void operator()(Wide<n>& p, Wide<n> g, Wide<n>& buffer, Wide<n>&, Wide<n>&) const {
    g = g * c.factor + c.weight_decay * p;
    if constexpr (kMomentum) {
      buffer = c.momentum * buffer + c.take * g;
      g = c.nesterov ? g + c.momentum * buffer : buffer;
    }
    p = p - c.lr * g;
  }
};

template <bool kCentered, bool kMomentum>
struct RmspropBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = kCentered && kMomentum ? 7 : kCentered || kMomentum ? 3 : 1;
  static constexpr unsigned kStores = kLoads;
  const RmspropConstants& c;

  template <int n>
  HWY_INLINE void operator()(Wide<n>& p, Wide<n> g, Wide<n>& square, Wide<n>& second,
                             Wide<n>& third) const {
    g = g * c.factor + c.weight_decay * p;
    square = moving_average(square, g * g, c.one_minus_alpha);
    Wide<n> variance = square;
    if constexpr (kCentered) {
      Wide<n>& average = kMomentum ? third : second;
      average = moving_average(average, g, c.one_minus_alpha);
      variance = square - average * average;
    }
    Wide<n> step = g / (root(variance) + c.eps);
    if constexpr (kMomentum) step = second = c.momentum * second + step;
    p = p - c.lr * step;
  }
};

struct LambBody {
  static constexpr Use kMaster = Use::read;
  static constexpr unsigned kLoads = 3, kStores = 7;
  const LambConstants& c;

  template <int n>
  HWY_INLINE void operator()(Wide<n>& p, Wide<n> g, Wide<n>& m, Wide<n>& v,
                             Wide<n>& direction) const {
    g = g * c.factor;
    m = moving_average(m, g, c.one_minus_beta1);
    v = moving_average(v, g * g, c.one_minus_beta2);
    const Wide<n> denominator = c.eps_inside_root ? root(v + c.eps) : root(v) + c.eps;
    direction = m / denominator + c.weight_decay * p;
  }
};

struct DescentBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 0, kStores = 0;
  const DescentConstants& c;

  template <int n>
  HWY_INLINE void operator()(Wide<n>& p, Wide<n> g, Wide<n>&, Wide<n>&, Wide<n>&) const {
    p = p - (c.rate * g + c.decay * p);
  }
};

struct BlendBody {
  static constexpr Use kMaster = Use::none;
  static constexpr unsigned kLoads = 1, kStores = 3;
  const BlendConstants& c;

  template <int n>
  HWY_INLINE void operator()(Wide<n>&, Wide<n> g, Wide<n>& momentum, Wide<n>& blend,
                             Wide<n>&) const {
    const Wide<n> fresh = c.one_minus_momentum * (g * c.factor);
    momentum = c.momentum * momentum + fresh;
    blend = fresh + c.momentum * momentum;
  }
};

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
