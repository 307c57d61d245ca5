// The vector operations of bodies-inl.h by Highway, for the target being compiled. Included once
// per target, inside HWY_BEFORE_NAMESPACE, in zero3d::simd::HWY_NAMESPACE. No fused multiply-add:
// the scalar lanes have none.

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using OneTag = hn::CappedTag<float, 1>;
HWY_INLINE std::int64_t lanes(FloatTag d) { return static_cast<std::int64_t>(hn::Lanes(d)); }

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bf16* from) {
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const f16* from) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

/// To nearest, ties to even, by integers as core/half.h does: bf16 instructions flush subnormals.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> bf16_bits(D, hn::Vec<D> v) {
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::int32_t, D> d32i;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40u));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  return hn::DemoteTo(d16, hn::BitCast(d32i, hn::IfThenElse(is_nan, quiet, rounded)));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, float* to) {
  hn::StoreU(v, d, to);
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, bf16* to) {
  const hn::Rebind<std::uint16_t, D> d16;
  hn::StoreU(bf16_bits(d, v), d16, reinterpret_cast<std::uint16_t*>(to));
}
template <class D>
HWY_INLINE void store(D, hn::Vec<D> v, f16* to) {
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(to));
}
template <class D>
HWY_INLINE hn::Vec<D> set(D d, float v) {
  return hn::Set(d, v);
}
template <class V>
HWY_INLINE V add(V a, V b) {
  return hn::Add(a, b);
}
template <class V>
HWY_INLINE V sub(V a, V b) {
  return hn::Sub(a, b);
}
template <class V>
HWY_INLINE V mul(V a, V b) {
  return hn::Mul(a, b);
}
template <class V>
HWY_INLINE V div(V a, V b) {
  return hn::Div(a, b);
}
template <class V>
HWY_INLINE V sqrt(V a) {
  return hn::Sqrt(a);
}
template <class V>
HWY_INLINE V select_by_sign(V a, V negative, V positive) {
  return hn::IfThenElse(hn::Lt(a, hn::Zero(hn::DFromV<V>())), negative, positive);
}
template <class D>
HWY_INLINE hn::Vec<D> xor_masked(D d, hn::Vec<D> a, hn::Vec<D> b, std::uint32_t mask) {
  const hn::Rebind<std::uint32_t, D> d32;
  const auto masked = hn::And(hn::BitCast(d32, b), hn::Set(d32, mask));
  return hn::BitCast(d, hn::Xor(hn::BitCast(d32, a), masked));
}
