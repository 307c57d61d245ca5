// The update loops of the optimizers on the GPU: the rules of kernels/cpu/optimizer_rules-inl.h,
// operation by operation, so that the bits are the CPU's. One launch takes many slices;
// descriptions of them travel in its parameters, so that nothing is copied ahead of it.
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/launch.cuh"

namespace zero3d::kernels::cuda {
namespace {

enum class Use { none, read, update };

/// A number whose operations are rounded one by one, whatever the compiler's flags are.
struct Number {
  float v;
};
__device__ inline Number operator+(Number a, Number b) { return {__fadd_rn(a.v, b.v)}; }
__device__ inline Number operator-(Number a, Number b) { return {__fsub_rn(a.v, b.v)}; }
__device__ inline Number operator*(Number a, Number b) { return {__fmul_rn(a.v, b.v)}; }
__device__ inline Number operator/(Number a, Number b) { return {__fdiv_rn(a.v, b.v)}; }
__device__ inline Number operator+(Number a, float b) { return a + Number{b}; }
__device__ inline Number operator*(Number a, float b) { return a * Number{b}; }
__device__ inline Number operator*(float a, Number b) { return Number{a} * b; }
__device__ inline Number root(Number a) { return {__fsqrt_rn(a.v)}; }
__device__ inline Number moving_average(Number average, Number value, float c) {
  return (average - c * average) + c * value;
}

template <bool kDecoupled>
struct AdamBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 3, kStores = 3;
  AdamConstants c;

  __device__ void operator()(Number& p, Number g, Number& m, Number& v, Number&) const {
    g = g * c.factor;
    if constexpr (!kDecoupled) g = g + c.decay * p;
    m = moving_average(m, g, c.one_minus_beta1);
    v = moving_average(v, g * g, c.one_minus_beta2);
    const Number denominator = root(v) * c.inverse_root_correction2 + c.eps;
    Number step = c.step_size * (m / denominator);
    if constexpr (kDecoupled) step = step + c.decay * p;
    p = p - step;
  }
};

struct LionBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 1, kStores = 1;
  LionConstants c;

  __device__ void operator()(Number& p, Number g, Number& m, Number&, Number&) const {
    g = g * c.factor;
    const Number blend = moving_average(m, g, c.one_minus_beta1);
    const Number step{blend.v < 0 ? -c.lr : c.lr};
    p = p - (step + c.decay * p);
    m = moving_average(m, g, c.one_minus_beta2);
  }
};

struct AdagradBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 1, kStores = 1;
  AdagradConstants c;

  __device__ void operator()(Number& p, Number g, Number& sum, Number&, Number&) const {
    g = g * c.factor + c.weight_decay * p;
    sum = sum + g * g;
    p = p - c.lr * (g / (root(sum) + c.eps));
  }
};

template <bool kMomentum>
struct SgdBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = kMomentum ? 1 : 0, kStores = kLoads;
  SgdConstants c;

  __device__ void operator()(Number& p, Number g, Number& buffer, Number&, Number&) const {
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
  RmspropConstants c;

  __device__ void operator()(Number& p, Number g, Number& square, Number& second,
                             Number& third) const {
    g = g * c.factor + c.weight_decay * p;
    square = moving_average(square, g * g, c.one_minus_alpha);
    Number variance = square;
    if constexpr (kCentered) {
      Number& average = kMomentum ? third : second;
      average = moving_average(average, g, c.one_minus_alpha);
      variance = square - average * average;
    }
    Number step = g / (root(variance) + c.eps);
    if constexpr (kMomentum) step = second = c.momentum * second + step;
    p = p - c.lr * step;
  }
};

struct LambBody {
  static constexpr Use kMaster = Use::read;
  static constexpr unsigned kLoads = 3, kStores = 7;
  LambConstants c;

  __device__ void operator()(Number& p, Number g, Number& m, Number& v, Number& direction) const {
    g = g * c.factor;
    m = moving_average(m, g, c.one_minus_beta1);
    v = moving_average(v, g * g, c.one_minus_beta2);
    const Number denominator = c.eps_inside_root ? root(v + c.eps) : root(v) + c.eps;
    direction = m / denominator + c.weight_decay * p;
  }
};

struct DescentBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 0, kStores = 0;
  DescentConstants c;

  __device__ void operator()(Number& p, Number g, Number&, Number&, Number&) const {
    p = p - (c.rate * g + c.decay * p);
  }
};

struct BlendBody {
  static constexpr Use kMaster = Use::none;
  static constexpr unsigned kLoads = 1, kStores = 3;
  BlendConstants c;

  __device__ void operator()(Number&, Number g, Number& momentum, Number& blend, Number&) const {
    const Number fresh = c.one_minus_momentum * (g * c.factor);
    momentum = c.momentum * momentum + fresh;
    blend = fresh + c.momentum * momentum;
  }
};

/// Adam's traffic with nothing computed.
struct NullBody {
  static constexpr Use kMaster = Use::update;
  static constexpr unsigned kLoads = 3, kStores = 3;
  NullConstants c;

  __device__ void operator()(Number& p, Number g, Number& m, Number& v, Number&) const {
    const std::uint32_t bits = __float_as_uint(g.v) & c.zero;
    for (Number* number : {&p, &m, &v})
      number->v = __uint_as_float(__float_as_uint(number->v) ^ bits);
  }
};

/// One slice, as small as it goes; no master or copy: null.
struct Slice {
  std::int64_t numel;
  std::byte *master, *gradient, *states[3], *copy;
  DType master_dtype, gradient_dtype, state_dtypes[3], copy_dtype;
  bool wide;  ///< All of its pointers are aligned.
};
constexpr int kSlices = 48;  // of one launch: its parameters stay below 4 KiB
struct Slices48 {
  Slice v[kSlices];
};

template <int n>
__device__ Floats<n> load_any(const std::byte* data, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return load<n>(reinterpret_cast<const float*>(data) + i);
  if (dtype == DType::bf16) return load<n>(reinterpret_cast<const bf16*>(data) + i);
  return load<n>(reinterpret_cast<const f16*>(data) + i);
}
template <int n>
__device__ void store_any(const Floats<n>& value, std::byte* data, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return store(value, reinterpret_cast<float*>(data) + i);
  if (dtype == DType::bf16) return store(value, reinterpret_cast<bf16*>(data) + i);
  store(value, reinterpret_cast<f16*>(data) + i);
}
__device__ float rounded(float value, DType dtype) {
  if (dtype == DType::bf16) return round_to<bf16>(value);
  if (dtype == DType::f16) return round_to<f16>(value);
  return value;
}

template <int n, typename Body>
__device__ void update_elements(const Body& body, const Slice& slice, std::int64_t i) {
  Floats<n> p{}, states[3] = {};
  if constexpr (Body::kMaster != Use::none) p = load_any<n>(slice.master, slice.master_dtype, i);
  const Floats<n> g = load_any<n>(slice.gradient, slice.gradient_dtype, i);
#pragma unroll
  for (unsigned s = 0; s < 3; ++s)
    if ((Body::kLoads >> s & 1u) != 0)
      states[s] = load_any<n>(slice.states[s], slice.state_dtypes[s], i);
#pragma unroll
  for (int k = 0; k < n; ++k) {
    Number master{p.v[k]}, s0{states[0].v[k]}, s1{states[1].v[k]}, s2{states[2].v[k]};
    body(master, Number{g.v[k]}, s0, s1, s2);
    p.v[k] = master.v;
    states[0].v[k] = s0.v;
    states[1].v[k] = s1.v;
    states[2].v[k] = s2.v;
  }
#pragma unroll
  for (unsigned s = 0; s < 3; ++s)
    if ((Body::kStores >> s & 1u) != 0)
      store_any(states[s], slice.states[s], slice.state_dtypes[s], i);
  if constexpr (Body::kMaster == Use::update) {
    store_any(p, slice.master, slice.master_dtype, i);
    if (slice.copy != nullptr) {  // of what the master became
#pragma unroll
      for (int k = 0; k < n; ++k) p.v[k] = rounded(p.v[k], slice.master_dtype);
      store_any(p, slice.copy, slice.copy_dtype, i);
    }
  }
}

template <typename Body>
__device__ void update_slice(const Body& body, const Slice& slice) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  std::int64_t done = 0;
  if (slice.wide) {
    const std::int64_t groups = slice.numel / kWide;
    for (std::int64_t group = first; group < groups; group += step)
      update_elements<kWide>(body, slice, group * kWide);
    done = groups * kWide;
  }
  for (std::int64_t i = done + first; i < slice.numel; i += step)
    update_elements<1>(body, slice, i);
}

template <typename Body>
__global__ void __launch_bounds__(kThreads)
    update_kernel(__grid_constant__ const Body body, __grid_constant__ const Slices48 slices) {
  update_slice(body, slices.v[blockIdx.y]);
}

struct Squares48 {
  const double* v[kSlices];
};

__global__ void __launch_bounds__(kThreads)
    lamb_step_kernel(const LambStepConstants c, __grid_constant__ const Slices48 slices,
                     __grid_constant__ const Squares48 squares) {
  const double* of_slice = squares.v[blockIdx.y];
  const double parameter = __dsqrt_rn(of_slice[0]), direction = __dsqrt_rn(of_slice[1]);
  double ratio = 1;  // trust_ratio of kernels/optimizer.h
  if (parameter != 0 && direction != 0) {
    ratio = __ddiv_rn(parameter, direction);
    ratio = ratio < c.min_coeff ? c.min_coeff : c.max_coeff < ratio ? c.max_coeff : ratio;
  }
  const DescentConstants descent{__double2float_rn(__dmul_rn(c.step_size, ratio)), 0.0f};
  update_slice(DescentBody{descent}, slices.v[blockIdx.y]);
}

Slice slice_of(const ElementArrays& a) {
  Slice slice{};
  slice.numel = a.numel;
  slice.master = a.master.data;
  slice.master_dtype = a.master.dtype;
  slice.gradient = a.gradient.data;
  slice.gradient_dtype = a.gradient.dtype;
  for (std::size_t s = 0; s < 3; ++s) {
    slice.states[s] = a.states[s].data;
    slice.state_dtypes[s] = a.states[s].dtype;
  }
  slice.copy = a.copy.data;
  slice.copy_dtype = a.copy.dtype;
  slice.wide = aligned({a.master.data, a.gradient.data, a.states[0].data, a.states[1].data,
                        a.states[2].data, a.copy.data});
  return slice;
}

/// start(grid, slices, first) for as many slices as fit one launch at a time.
template <typename Start>
void over_slices(const std::vector<ElementArrays>& all, const Start& start) {
  for (std::size_t first = 0; first < all.size(); first += kSlices) {
    Slices48 slices{};
    const std::size_t count = std::min<std::size_t>(kSlices, all.size() - first);
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      slices.v[i] = slice_of(all[first + i]);
      longest = std::max(longest, slices.v[i].numel);
    }
    if (longest == 0) continue;
    const dim3 grid(grid_of(divided_up(longest, kThreads * kWide)), static_cast<unsigned>(count));
    start(grid, slices, first);
  }
}

template <typename Body, typename Constants>
void run(const UpdateArgs<Constants>& args, NativeStream stream) {
  over_slices(args.slices, [&](const dim3& grid, const Slices48& slices, std::size_t) {
    update_kernel<<<grid, kThreads, 0, stream>>>(Body{args.constants}, slices);
  });
  check_launch("update");
}

}  // namespace

template <>
void update(const UpdateArgs<AdamConstants>& a, NativeStream stream) {
  a.constants.decoupled ? run<AdamBody<true>>(a, stream) : run<AdamBody<false>>(a, stream);
}
template <>
void update(const UpdateArgs<LionConstants>& a, NativeStream stream) {
  run<LionBody>(a, stream);
}
template <>
void update(const UpdateArgs<AdagradConstants>& a, NativeStream stream) {
  run<AdagradBody>(a, stream);
}
template <>
void update(const UpdateArgs<SgdConstants>& a, NativeStream stream) {
  a.constants.has_momentum ? run<SgdBody<true>>(a, stream) : run<SgdBody<false>>(a, stream);
}
template <>
void update(const UpdateArgs<RmspropConstants>& a, NativeStream stream) {
  if (a.constants.centered) {
    a.constants.has_momentum ? run<RmspropBody<true, true>>(a, stream)
                             : run<RmspropBody<true, false>>(a, stream);
  } else {
    a.constants.has_momentum ? run<RmspropBody<false, true>>(a, stream)
                             : run<RmspropBody<false, false>>(a, stream);
  }
}
template <>
void update(const UpdateArgs<LambConstants>& a, NativeStream stream) {
  run<LambBody>(a, stream);
}
template <>
void update(const UpdateArgs<DescentConstants>& a, NativeStream stream) {
  run<DescentBody>(a, stream);
}
template <>
void update(const UpdateArgs<BlendConstants>& a, NativeStream stream) {
  run<BlendBody>(a, stream);
}
template <>
void update(const UpdateArgs<NullConstants>& a, NativeStream stream) {
  run<NullBody>(a, stream);
}

void lamb_step(const LambStepArgs& args, NativeStream stream) {
  over_slices(args.slices, [&](const dim3& grid, const Slices48& slices, std::size_t first) {
    Squares48 squares{};
    for (std::size_t i = 0; i < grid.y; ++i) squares.v[i] = args.squares[first + i];
    lamb_step_kernel<<<grid, kThreads, 0, stream>>>(args.constants, slices, squares);
  });
  check_launch("lamb step");
}

}  // namespace zero3d::kernels::cuda
