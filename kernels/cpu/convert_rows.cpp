// The passes of convert_rows.h, compiled once per instruction set.
#include "zero3d/kernels/cpu/convert_rows.h"

#include "zero3d/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/convert_rows.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels {
namespace HWY_NAMESPACE {

void load_row(const void* from, DType dtype, std::int64_t count, float* to) {
  with_type(dtype, [&](auto tag) HWY_ATTR {
    const auto* source = static_cast<const decltype(tag)*>(from);
    for_lanes(count, [&](std::int64_t i, auto lanes)
                         HWY_ATTR { store(load(source + i, lanes), to + i, lanes); });
  });
}

void add_row(const void* from, DType dtype, std::int64_t count, float* to) {
  with_type(dtype, [&](auto tag) HWY_ATTR {
    const auto* source = static_cast<const decltype(tag)*>(from);
    for_lanes(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      store(hn::Add(load(to + i, lanes), load(source + i, lanes)), to + i, lanes);
    });
  });
}

void store_row(const float* from, std::int64_t count, void* to, DType dtype) {
  with_type(dtype, [&](auto tag) HWY_ATTR {
    auto* target = static_cast<decltype(tag)*>(to);
    for_lanes(count, [&](std::int64_t i, auto lanes)
                         HWY_ATTR { store(load(from + i, lanes), target + i, lanes); });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace zero3d::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {
namespace {

HWY_EXPORT(load_row);
HWY_EXPORT(add_row);
HWY_EXPORT(store_row);

}  // namespace

void cpu::load_row(const void* from, DType dtype, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(load_row)(from, dtype, count, to);
}
void cpu::add_row(const void* from, DType dtype, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(add_row)(from, dtype, count, to);
}
void cpu::store_row(const float* from, std::int64_t count, void* to, DType dtype) {
  HWY_DYNAMIC_DISPATCH(store_row)(from, count, to, dtype);
}

}  // namespace zero3d::kernels
#endif  // HWY_ONCE
