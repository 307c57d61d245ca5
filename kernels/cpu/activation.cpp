// Activations and dropout on the CPU, elementwise over chunks of fixed size.
#include "zero3d/kernels/cpu/activation.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/activation.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/philox-inl.h"
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

// With v = 2 sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh(v / 2)) = 1 / (1 + exp(-v)): one
// exponential and one division, without the cancellation of 1 + tanh at negative x.
constexpr float kSlope = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kCubic = 1.5957691216057308f * 0.044715f;
constexpr float kLargestExponent = 87.0f;  // exp stays finite; sigmoid(-87) is already below 2e-38

/// exp(-v), finite for every v; a NaN in v is lost, so results are multiplied by the argument.
HWY_INLINE Vec32 bounded_exp_of_minus(Vec32 v) {
  return exp(hn::Min(hn::Neg(v), set(kLargestExponent)));
}

HWY_INLINE Vec32 gelu_of(Vec32 x) {
  const Vec32 v = hn::Mul(x, hn::MulAdd(hn::Mul(x, x), set(kCubic), set(kSlope)));
  return hn::Div(x, hn::Add(set(1.0f), bounded_exp_of_minus(v)));
}

HWY_INLINE Vec32 gelu_slope(Vec32 x) {
  // Beyond 20 the slope is 0 or 1 to the last bit, and x^3 could overflow.
  const Vec32 near = hn::Max(hn::Min(x, set(20.0f)), set(-20.0f));
  const Vec32 square = hn::Mul(near, near);
  const Vec32 e = bounded_exp_of_minus(hn::Mul(near, hn::MulAdd(square, set(kCubic), set(kSlope))));
  const Vec32 sigmoid = hn::Div(set(1.0f), hn::Add(set(1.0f), e));
  const Vec32 dv = hn::MulAdd(square, set(3 * kCubic), set(kSlope));
  // x s (1 - s) dv, with 1 - s = e s.
  return hn::MulAdd(hn::Mul(x, hn::Mul(hn::Mul(e, sigmoid), sigmoid)), dv, sigmoid);
}

void gelu_chunk(const GeluArgs& a, std::int64_t begin, std::int64_t end) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    const T* x = static_cast<const T*>(a.x) + begin;
    T* out = static_cast<T*>(a.out) + begin;
    if (a.dy == nullptr) {
      for_lanes(end - begin, [&](std::int64_t i, auto lanes)
                                 HWY_ATTR { store(gelu_of(load(x + i, lanes)), out + i, lanes); });
      return;
    }
    const T* dy = static_cast<const T*>(a.dy) + begin;
    for_lanes(end - begin, [&](std::int64_t i, auto lanes) HWY_ATTR {
      store(hn::Mul(load(dy + i, lanes), gelu_slope(load(x + i, lanes))), out + i, lanes);
    });
  });
}

/// f(gate) and, for backward, f'(gate).
template <GateFunction kFunction>
HWY_INLINE Vec32 gate_value(Vec32 g) {
  if constexpr (kFunction == GateFunction::gelu) return gelu_of(g);
  return hn::Div(g, hn::Add(set(1.0f), bounded_exp_of_minus(g)));
}

template <GateFunction kFunction>
HWY_INLINE Vec32 gate_slope(Vec32 g) {
  if constexpr (kFunction == GateFunction::gelu) return gelu_slope(g);
  const Vec32 e = bounded_exp_of_minus(g);  // silu'(g) = s (1 + g (1 - s)), with 1 - s = e s
  const Vec32 sigmoid = hn::Div(set(1.0f), hn::Add(set(1.0f), e));
  return hn::Mul(sigmoid, hn::MulAdd(g, hn::Mul(e, sigmoid), set(1.0f)));
}

/// Calls body(T, GateFunction) as compile-time values.
template <typename Body>
HWY_INLINE void with_gate(const GatedArgs& a, const Body& body) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    if (a.function == GateFunction::silu) {
      body(tag, std::integral_constant<GateFunction, GateFunction::silu>());
    } else {
      body(tag, std::integral_constant<GateFunction, GateFunction::gelu>());
    }
  });
}

void gated_forward_rows(const GatedArgs& a, std::int64_t begin, std::int64_t end) {
  with_gate(a, [&](auto tag, auto function) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* gate = row_of<T>(a.gate, row);
      const T* up = row_of<T>(a.up, row);
      T* y = static_cast<T*>(a.y) + row * a.width;
      for_lanes(a.width, [&](std::int64_t i, auto lanes) HWY_ATTR {
        const Vec32 value = round_to<T>(gate_value<function()>(load(gate + i, lanes)));
        store(hn::Mul(value, load(up + i, lanes)), y + i, lanes);
      });
    }
  });
}

/// The gradients of both factors are rounded to T as autograd does.
void gated_backward_rows(const GatedArgs& a, std::int64_t begin, std::int64_t end) {
  with_gate(a, [&](auto tag, auto function) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* gate = row_of<T>(a.gate, row);
      const T* up = row_of<T>(a.up, row);
      const T* dy = static_cast<const T*>(a.dy) + row * a.width;
      T* dgate = row_of<T>(a.dgate, row);
      T* dup = row_of<T>(a.dup, row);
      for_lanes(a.width, [&](std::int64_t i, auto lanes) HWY_ATTR {
        const Vec32 g = load(gate + i, lanes);
        const Vec32 d = load(dy + i, lanes);
        const Vec32 value = round_to<T>(gate_value<function()>(g));
        const Vec32 dvalue = round_to<T>(hn::Mul(d, load(up + i, lanes)));
        store(hn::Mul(d, value), dup + i, lanes);
        store(hn::Mul(dvalue, gate_slope<function()>(g)), dgate + i, lanes);
      });
    }
  });
}

/// Elements [begin, end) of one sample, at most kDropoutChunk. Random words come four at a time.
void dropout_chunk(const DropoutArgs& a, std::int64_t sample, std::int64_t begin,
                   std::int64_t end) {
  HWY_ALIGN std::uint32_t words[cpu::kDropoutChunk + 4 + kWordSlack + kLanes];
  const std::int64_t element = a.first_element + begin;
  const std::int64_t skew = element % 4;
  if (a.p > 0) {
    fill_words(a.key, a.key.sample + static_cast<std::uint64_t>(sample),
               static_cast<std::uint64_t>(element) / 4, (end - begin + skew + 3) / 4, words);
  } else {
    std::memset(words, 0, sizeof(words));  // every number is at least 0
  }
  const Vec32 factor = set(a.p < 1.0f ? 1.0f / (1.0f - a.p) : 0.0f);
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    const std::int64_t offset = sample * a.per_sample + begin;
    const T* x = static_cast<const T*>(a.x) + offset;
    const T* residual =
        a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + offset;
    T* y = static_cast<T*>(a.y) + offset;
    for_lanes(end - begin, [&](std::int64_t i, auto lanes) HWY_ATTR {
      Vec32 value =
          hn::IfThenElseZero(kept(words + skew + i, a.p), hn::Mul(load(x + i, lanes), factor));
      if (residual != nullptr) value = hn::Add(value, load(residual + i, lanes));
      store(value, y + i, lanes);
    });
  });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(gelu_chunk);
HWY_EXPORT(gated_forward_rows);
HWY_EXPORT(gated_backward_rows);
HWY_EXPORT(dropout_chunk);

namespace cpu {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements a task

std::int64_t row_grain(std::int64_t width) {
  return std::max<std::int64_t>(1, kChunk / std::max<std::int64_t>(1, width));
}

}  // namespace

void gelu(const GeluArgs& args) {
  parallel_for(args.count, kChunk, [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_chunk)(args, begin, end);
  });
}

void gated_forward(const GatedArgs& args) {
  parallel_for(args.rows, row_grain(args.width), [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gated_forward_rows)(args, begin, end);
  });
}

void gated_backward(const GatedArgs& args) {
  parallel_for(args.rows, row_grain(args.width), [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gated_backward_rows)(args, begin, end);
  });
}

void dropout(const DropoutArgs& args) {
  const std::int64_t chunks = (args.per_sample + kDropoutChunk - 1) / kDropoutChunk;  // of a sample
  parallel_for(args.samples * chunks, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % chunks * kDropoutChunk;
      HWY_DYNAMIC_DISPATCH(dropout_chunk)
      (args, i / chunks, first, std::min(first + kDropoutChunk, args.per_sample));
    }
  });
}

}  // namespace cpu
}  // namespace zero3d::kernels
#endif  // HWY_ONCE
