// Activations and dropout on the GPU. The bits are the CPU's.
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/functions.cuh"
#include "zero3d/kernels/cuda/launch.cuh"

namespace zero3d::kernels::cuda {
namespace {

template <typename T, bool kBackward>
struct Gelu {
  const T *x, *dy;
  T* out;
  template <int n>
  __device__ void at(std::int64_t i) const {
    const Floats<n> value = load<n>(x + i);
    if constexpr (!kBackward) {
      store(each<n>([&](int k) { return gelu_of(value.v[k]); }), out + i);
    } else {
      const Floats<n> d = load<n>(dy + i);
      store(each<n>([&](int k) { return __fmul_rn(d.v[k], gelu_slope(value.v[k])); }), out + i);
    }
  }
};

template <GateFunction kFunction>
__device__ float gate_value(float g) {
  return kFunction == GateFunction::gelu ? gelu_of(g) : silu_of(g);
}
template <GateFunction kFunction>
__device__ float gate_slope(float g) {
  return kFunction == GateFunction::gelu ? gelu_slope(g) : silu_slope(g);
}

template <typename T, GateFunction kFunction>
struct GatedForward {
  ConstRows gate, up;
  T* y;
  std::int64_t width;
  template <int n>
  __device__ void at(std::int64_t row, std::int64_t i) const {
    const Floats<n> g = load<n>(static_cast<const T*>(gate.data) + row * gate.stride + i);
    const Floats<n> u = load<n>(static_cast<const T*>(up.data) + row * up.stride + i);
    store(each<n>(
              [&](int k) { return __fmul_rn(round_to<T>(gate_value<kFunction>(g.v[k])), u.v[k]); }),
          y + row * width + i);
  }
};

/// The gradients of both factors are rounded to T as autograd does.
template <typename T, GateFunction kFunction>
struct GatedBackward {
  ConstRows gate, up;
  const T* dy;
  Rows dgate, dup;
  std::int64_t width;
  template <int n>
  __device__ void at(std::int64_t row, std::int64_t i) const {
    const Floats<n> g = load<n>(static_cast<const T*>(gate.data) + row * gate.stride + i);
    const Floats<n> u = load<n>(static_cast<const T*>(up.data) + row * up.stride + i);
    const Floats<n> d = load<n>(dy + row * width + i);
    const Floats<n> of_up = each<n>(
        [&](int k) { return __fmul_rn(d.v[k], round_to<T>(gate_value<kFunction>(g.v[k]))); });
    const Floats<n> of_gate = each<n>([&](int k) {
      return __fmul_rn(round_to<T>(__fmul_rn(d.v[k], u.v[k])), gate_slope<kFunction>(g.v[k]));
    });
    store(of_up, static_cast<T*>(dup.data) + row * dup.stride + i);
    store(of_gate, static_cast<T*>(dgate.data) + row * dgate.stride + i);
  }
};

/// Calls body(T, GateFunction) as compile-time values.
template <typename Body>
void with_gate(const GatedArgs& a, const Body& body) {
  with_type(a.dtype, [&](auto tag) {
    if (a.function == GateFunction::silu) {
      body(tag, std::integral_constant<GateFunction, GateFunction::silu>());
    } else {
      body(tag, std::integral_constant<GateFunction, GateFunction::gelu>());
    }
  });
}

/// Rows are samples. Wide only where a run of elements begins at a multiple of four.
template <typename T>
struct Dropout {
  const T *x, *residual;
  T* y;
  std::int64_t per_sample, first_element;
  RandomKey key;
  float p, factor;
  template <int n>
  __device__ void at(std::int64_t sample, std::int64_t i) const {
    const std::int64_t offset = sample * per_sample + i;
    const auto element = static_cast<std::uint64_t>(first_element + i);
    const auto of_sample = key.sample + static_cast<std::uint64_t>(sample);
    const Floats<n> value = load<n>(x + offset);
    Floats<n> result;
    if constexpr (n == 1) {
      result.v[0] = kept(key, of_sample, element, p) ? __fmul_rn(value.v[0], factor) : 0.0f;
    } else {
#pragma unroll
      for (int k = 0; k < n; k += 4) {
        const uint4 words = random_words(key, of_sample, (element + static_cast<unsigned>(k)) / 4);
        const std::uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          result.v[k + j] = kept(word[j], p) ? __fmul_rn(value.v[k + j], factor) : 0.0f;
      }
    }
    if (residual != nullptr) {
      const Floats<n> more = load<n>(residual + offset);
#pragma unroll
      for (int k = 0; k < n; ++k) result.v[k] = __fadd_rn(result.v[k], more.v[k]);
    }
    store(result, y + offset);
  }
};

}  // namespace

void gelu(const GeluArgs& a, NativeStream stream) {
  with_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto *x = static_cast<const T*>(a.x), *dy = static_cast<const T*>(a.dy);
    auto* out = static_cast<T*>(a.out);
    const bool wide = aligned({x, dy, out});
    if (dy == nullptr) {
      for_elements("gelu_forward", stream, a.count, wide, Gelu<T, false>{x, dy, out});
    } else {
      for_elements("gelu_backward", stream, a.count, wide, Gelu<T, true>{x, dy, out});
    }
  });
}

void gated_forward(const GatedArgs& a, NativeStream stream) {
  const bool wide =
      aligned({a.gate.data, a.up.data, a.y}) && wide_rows({a.width, a.gate.stride, a.up.stride});
  with_gate(a, [&](auto tag, auto function) {
    using T = decltype(tag);
    for_matrix("gated forward", stream, a.rows, a.width, wide,
               GatedForward<T, function()>{a.gate, a.up, static_cast<T*>(a.y), a.width});
  });
}

void gated_backward(const GatedArgs& a, NativeStream stream) {
  const bool wide = aligned({a.gate.data, a.up.data, a.dy, a.dgate.data, a.dup.data}) &&
                    wide_rows({a.width, a.gate.stride, a.up.stride, a.dgate.stride, a.dup.stride});
  with_gate(a, [&](auto tag, auto function) {
    using T = decltype(tag);
    for_matrix("gated backward", stream, a.rows, a.width, wide,
               GatedBackward<T, function()>{a.gate, a.up, static_cast<const T*>(a.dy), a.dgate,
                                            a.dup, a.width});
  });
}

void dropout(const DropoutArgs& a, NativeStream stream) {
  const bool wide =
      aligned({a.x, a.residual, a.y}) && wide_rows({a.per_sample}) && a.first_element % 4 == 0;
  const float factor = a.p < 1.0f ? 1.0f / (1.0f - a.p) : 0.0f;
  with_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_matrix("dropout", stream, a.samples, a.per_sample, wide,
               Dropout<T>{static_cast<const T*>(a.x), static_cast<const T*>(a.residual),
                          static_cast<T*>(a.y), a.per_sample, a.first_element, a.key, a.p, factor});
  });
}

}  // namespace zero3d::kernels::cuda
