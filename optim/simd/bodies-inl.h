// The update rules, written once: each body is one sequence of IEEE operations on vectors of
// whatever lanes the including namespace provides (scalar_lanes.h or vector_lanes-inl.h), and the
// loop that feeds it. Included once per instruction set; hence no include guard.
//
// A body states which arrays it touches: kMaster, kGradient, kLoads and kStores (bit i: state i).

enum class Use { none, read, update };

/// average = beta * average + (1 - beta) * value, as (average - c * average) + c * value with c = 1
/// - beta: a beta near 1 loses digits when rounded to fp32 (0.999 shifts a second moment by 1e-6 in
/// a hundred steps), 1 - beta does not; and beta = 0 still gives the value itself.
template <class D, class V>
HWY_INLINE V moving_average(D d, V average, V value, float c) {
  const V take = set(d, c);
  return add(sub(average, mul(take, average)), mul(take, value));
}

struct AdamBase {
  static constexpr Use kMaster = Use::update;
  static constexpr bool kGradient = true;
  static constexpr unsigned kLoads = 3, kStores = 3;
};

template <bool kDecoupled>
struct AdamBody : AdamBase {
  const AdamConstants& c;
  explicit AdamBody(const AdamConstants& constants) : c(constants) {}

  template <class D, class V>
  HWY_INLINE void operator()(D d, V& p, V g, V& m, V& v, V&) const {
    g = mul(g, set(d, c.factor));
    if constexpr (!kDecoupled) g = add(g, mul(set(d, c.decay), p));
    m = moving_average(d, m, g, c.one_minus_beta1);
    v = moving_average(d, v, mul(g, g), c.one_minus_beta2);
    const V denominator = add(mul(sqrt(v), set(d, c.inverse_root_correction2)), set(d, c.eps));
    V step = mul(set(d, c.step_size), div(m, denominator));
    if constexpr (kDecoupled) step = add(step, mul(set(d, c.decay), p));
    p = sub(p, step);
  }
};

struct LionBody {
  static constexpr Use kMaster = Use::update;
  static constexpr bool kGradient = true;
  static constexpr unsigned kLoads = 1, kStores = 1;
  const LionConstants& c;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V& p, V g, V& m, V&, V&) const {
    g = mul(g, set(d, c.factor));
    const V blend = moving_average(d, m, g, c.one_minus_beta1);
    const V step = select_by_sign(blend, set(d, -c.lr), set(d, c.lr));
    p = sub(p, add(step, mul(set(d, c.decay), p)));
    m = moving_average(d, m, g, c.one_minus_beta2);
  }
};

struct AdagradBody {
  static constexpr Use kMaster = Use::update;
  static constexpr bool kGradient = true;
  static constexpr unsigned kLoads = 1, kStores = 1;
  const AdagradConstants& c;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V& p, V g, V& sum, V&, V&) const {
    g = add(mul(g, set(d, c.factor)), mul(set(d, c.weight_decay), p));
    sum = add(sum, mul(g, g));
    p = sub(p, mul(set(d, c.lr), div(g, add(sqrt(sum), set(d, c.eps)))));
  }
};

template <bool kMomentum>
struct SgdBody {
  static constexpr Use kMaster = Use::update;
  static constexpr bool kGradient = true;
  static constexpr unsigned kLoads = kMomentum ? 1 : 0, kStores = kLoads;
  const SgdConstants& c;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V& p, V g, V& buffer, V&, V&) const {
    g = add(mul(g, set(d, c.factor)), mul(set(d, c.weight_decay), p));
    if constexpr (kMomentum) {
      buffer = add(mul(set(d, c.momentum), buffer), mul(set(d, c.take), g));
      g = c.nesterov ? add(g, mul(set(d, c.momentum), buffer)) : buffer;
    }
    p = sub(p, mul(set(d, c.lr), g));
  }
};

template <bool kCentered, bool kMomentum>
struct RmspropBody {
  static constexpr Use kMaster = Use::update;
  static constexpr bool kGradient = true;
  static constexpr unsigned kLoads = kCentered && kMomentum ? 7 : kCentered || kMomentum ? 3 : 1;
  static constexpr unsigned kStores = kLoads;
  const RmspropConstants& c;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V& p, V g, V& square, V& second, V& third) const {
    g = add(mul(g, set(d, c.factor)), mul(set(d, c.weight_decay), p));
    square = moving_average(d, square, mul(g, g), c.one_minus_alpha);
    V variance = square;
    if constexpr (kCentered) {
      V& average = kMomentum ? third : second;
      average = moving_average(d, average, g, c.one_minus_alpha);
      variance = sub(square, mul(average, average));
    }
    V step = div(g, add(sqrt(variance), set(d, c.eps)));
    if constexpr (kMomentum) step = second = add(mul(set(d, c.momentum), second), step);
    p = sub(p, mul(set(d, c.lr), step));
  }
};

struct LambBody {
  static constexpr Use kMaster = Use::read;
  static constexpr bool kGradient = true;
  static constexpr unsigned kLoads = 3, kStores = 7;
  const LambConstants& c;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V& p, V g, V& m, V& v, V& direction) const {
    g = mul(g, set(d, c.factor));
    m = moving_average(d, m, g, c.one_minus_beta1);
    v = moving_average(d, v, mul(g, g), c.one_minus_beta2);
    const V denominator =
        c.eps_inside_root ? sqrt(add(v, set(d, c.eps))) : add(sqrt(v), set(d, c.eps));
    direction = add(div(m, denominator), mul(set(d, c.weight_decay), p));
  }
};

struct DescentBody {
  static constexpr Use kMaster = Use::update;
  static constexpr bool kGradient = true;
  static constexpr unsigned kLoads = 0, kStores = 0;
  const DescentConstants& c;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V& p, V g, V&, V&, V&) const {
    p = sub(p, add(mul(set(d, c.rate), g), mul(set(d, c.decay), p)));
  }
};

struct BlendBody {
  static constexpr Use kMaster = Use::none;
  static constexpr bool kGradient = true;
  static constexpr unsigned kLoads = 1, kStores = 3;
  const BlendConstants& c;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V&, V g, V& momentum, V& blend, V&) const {
    const V fresh = mul(set(d, c.one_minus_momentum), mul(g, set(d, c.factor)));
    momentum = add(mul(set(d, c.momentum), momentum), fresh);
    blend = add(fresh, mul(set(d, c.momentum), momentum));
  }
};

/// Elements fed to a body at a time: f32 arrays in place, others by way of buffers that stay in the
/// first-level cache.
inline constexpr std::int64_t kBlock = 512;

template <class T>
void widen(const T* from, float* to, std::int64_t count) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + lanes(d) <= count; i += lanes(d)) store(d, load(d, from + i), to + i);
  const OneTag one;
  for (; i < count; ++i) store(one, load(one, from + i), to + i);
}

template <class T>
void narrow(const float* from, T* to, std::int64_t count) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + lanes(d) <= count; i += lanes(d)) store(d, load(d, from + i), to + i);
  const OneTag one;
  for (; i < count; ++i) store(one, load(one, from + i), to + i);
}

/// Elements [begin, begin + count) as floats: the array's own, or a copy in `buffer`.
inline float* open(const Array& array, std::int64_t begin, std::int64_t count, float* buffer,
                   bool load_them) {
  if (array.dtype == DType::f32) return reinterpret_cast<float*>(array.data) + begin;
  if (!load_them) return buffer;
  if (array.dtype == DType::bf16)
    widen(reinterpret_cast<const bf16*>(array.data) + begin, buffer, count);
  else
    widen(reinterpret_cast<const f16*>(array.data) + begin, buffer, count);
  return buffer;
}

/// Writes back what open() gave, when that was a copy.
inline void close(const Array& array, std::int64_t begin, std::int64_t count, const float* from) {
  if (array.dtype == DType::bf16)
    narrow(from, reinterpret_cast<bf16*>(array.data) + begin, count);
  else if (array.dtype == DType::f16)
    narrow(from, reinterpret_cast<f16*>(array.data) + begin, count);
  else if (reinterpret_cast<float*>(array.data) + begin != from)
    narrow(from, reinterpret_cast<float*>(array.data) + begin, count);
}

struct Pointers {
  float* master;
  const float* gradient;
  float* states[3];
};

template <class Body, class D>
HWY_INLINE void element(const Body& body, D d, const Pointers& at, std::int64_t i) {
  const auto zero = set(d, 0.0f);
  auto p = zero, g = zero, s0 = zero, s1 = zero, s2 = zero;
  if constexpr (Body::kMaster != Use::none) p = load(d, at.master + i);
  if constexpr (Body::kGradient) g = load(d, at.gradient + i);
  if constexpr (Body::kLoads & 1u) s0 = load(d, at.states[0] + i);
  if constexpr (Body::kLoads & 2u) s1 = load(d, at.states[1] + i);
  if constexpr (Body::kLoads & 4u) s2 = load(d, at.states[2] + i);
  body(d, p, g, s0, s1, s2);
  if constexpr (Body::kStores & 1u) store(d, s0, at.states[0] + i);
  if constexpr (Body::kStores & 2u) store(d, s1, at.states[1] + i);
  if constexpr (Body::kStores & 4u) store(d, s2, at.states[2] + i);
  if constexpr (Body::kMaster == Use::update) store(d, p, at.master + i);
}

template <class Body>
void block(const Body& body, const Pointers at, std::int64_t count) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + lanes(d) <= count; i += lanes(d)) element(body, d, at, i);
  const OneTag one;
  for (; i < count; ++i) element(body, one, at, i);
}

template <class Body, class Constants>
void loop(const Constants& constants, const ElementArrays& arrays, std::int64_t begin,
          std::int64_t end) {
  alignas(64) float buffers[5][kBlock];
  const Body body{constants};
  for (std::int64_t first = begin; first < end; first += kBlock) {
    const std::int64_t count = end - first < kBlock ? end - first : kBlock;
    Pointers at{};
    if constexpr (Body::kMaster != Use::none)
      at.master = open(arrays.master, first, count, buffers[0], true);
    if constexpr (Body::kGradient)
      at.gradient = open(arrays.gradient, first, count, buffers[1], true);
    for (unsigned s = 0; s < 3; ++s)
      if ((Body::kLoads | Body::kStores) >> s & 1u)
        at.states[s] = open(arrays.states[s], first, count, buffers[2 + s], Body::kLoads >> s & 1u);
    block(body, at, count);
    for (unsigned s = 0; s < 3; ++s)
      if (Body::kStores >> s & 1u) close(arrays.states[s], first, count, at.states[s]);
    if constexpr (Body::kMaster == Use::update) {
      close(arrays.master, first, count, at.master);
      if (!arrays.copy.data) continue;
      if (is_16bit(arrays.master.dtype)) open(arrays.master, first, count, at.master, true);
      close(arrays.copy, first, count, at.master);
    }
  }
}

/// The streams of an Adam update with nothing computed: a ceiling must not pay for conversions
/// either, so a 16-bit array moves as half as many floats.
inline void null_loop(const NullConstants& c, const ElementArrays& arrays, std::int64_t begin,
                      std::int64_t end) {
  const FloatTag d;
  const std::int64_t step = 2 * lanes(d);
  float* const full[3] = {reinterpret_cast<float*>(arrays.master.data),
                          reinterpret_cast<float*>(arrays.states[0].data),
                          reinterpret_cast<float*>(arrays.states[1].data)};
  const bool narrow_gradient = arrays.gradient.dtype != DType::f32;
  const bool narrow_copy = arrays.copy.dtype != DType::f32;
  const auto* gradient = reinterpret_cast<const float*>(arrays.gradient.data);
  auto* copy = reinterpret_cast<float*>(arrays.copy.data);
  for (std::int64_t i = begin; i + step <= end; i += step) {
    const std::int64_t at = narrow_gradient ? i / 2 : i;
    const auto g0 = load(d, gradient + at);
    const auto g1 = narrow_gradient ? g0 : load(d, gradient + at + lanes(d));
    for (float* array : full) {
      store(d, xor_masked(d, load(d, array + i), g0, c.zero), array + i);
      store(d, xor_masked(d, load(d, array + i + lanes(d)), g1, c.zero), array + i + lanes(d));
    }
    if (!copy) continue;
    const std::int64_t to = narrow_copy ? i / 2 : i;
    store(d, g0, copy + to);
    if (!narrow_copy) store(d, g1, copy + to + lanes(d));
  }
}

inline const KernelTable& table() {
  static constexpr KernelTable kTable = {loop<AdamBody<true>, AdamConstants>,
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
