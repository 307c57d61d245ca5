// Elementwise passes on the CPU, by blocks that depend on the number of elements alone; and the
// squares of the gradient norm, in one tree whatever the vector length.
#include "zero3d/kernels/cpu/elementwise.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/simd_targets.h"
#include "zero3d/kernels/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels {
namespace HWY_NAMESPACE {

void convert_run(const void* from, DType from_dtype, std::int64_t count, void* to, DType to_dtype) {
  with_type(from_dtype, [&](auto from_tag) HWY_ATTR {
    with_type(to_dtype, [&](auto to_tag) HWY_ATTR {
      const auto* source = static_cast<const decltype(from_tag)*>(from);
      auto* target = static_cast<decltype(to_tag)*>(to);
      for_lanes(count, [&](std::int64_t i, auto lanes)
                           HWY_ATTR { store(load(source + i, lanes), target + i, lanes); });
    });
  });
}

void add_run(const void* from, DType from_dtype, std::int64_t count, void* to, DType to_dtype) {
  with_type(from_dtype, [&](auto from_tag) HWY_ATTR {
    with_type(to_dtype, [&](auto to_tag) HWY_ATTR {
      const auto* source = static_cast<const decltype(from_tag)*>(from);
      auto* target = static_cast<decltype(to_tag)*>(to);
      for_lanes(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
        store(hn::Add(load(target + i, lanes), load(source + i, lanes)), target + i, lanes);
      });
    });
  });
}

void sum_columns_rows(const SumColumnsArgs& a, std::int64_t begin, std::int64_t end) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      T* to = row_of<T>(a.to, row);
      for_lanes(a.width, [&](std::int64_t i, auto lanes) HWY_ATTR {
        Vec32 sum = load(row_of<T>(a.parts[0], row) + i, lanes);
        for (std::size_t at = 1; at < a.parts.size(); ++at)
          sum = hn::Add(sum, load(row_of<T>(a.parts[at], row) + i, lanes));
        store(sum, to + i, lanes);
      });
    }
  });
}

void add_scaled_run(const void* from, DType from_dtype, std::int64_t count, void* to,
                    DType to_dtype, float factor) {
  const Vec32 by = set(factor);
  with_type(from_dtype, [&](auto from_tag) HWY_ATTR {
    with_type(to_dtype, [&](auto to_tag) HWY_ATTR {
      const auto* source = static_cast<const decltype(from_tag)*>(from);
      auto* target = static_cast<decltype(to_tag)*>(to);
      for_lanes(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
        const auto product = hn::Mul(load(source + i, lanes), by);
        store(hn::Add(load(target + i, lanes), product), target + i, lanes);
      });
    });
  });
}

void scale_run(void* x, DType dtype, std::int64_t count, float factor) {
  const Vec32 by = set(factor);
  with_type(dtype, [&](auto tag) HWY_ATTR {
    auto* at = static_cast<decltype(tag)*>(x);
    for_lanes(count, [&](std::int64_t i, auto lanes)
                         HWY_ATTR { store(hn::Mul(load(at + i, lanes), by), at + i, lanes); });
  });
}

void fill_run(void* x, DType dtype, std::int64_t count, float value) {
  const Vec32 everywhere = set(value);
  with_type(dtype, [&](auto tag) HWY_ATTR {
    auto* to = static_cast<decltype(tag)*>(x);
    for_lanes(count,
              [&](std::int64_t i, auto lanes) HWY_ATTR { store(everywhere, to + i, lanes); });
  });
}

/// Element j goes to partial sum j % 8, and the eight are added as a binary tree. A square of fp32
/// is exact in fp64, so that a fused multiply-add rounds as a multiply and an add do.
double square_sum(const float* x, std::int64_t count) {
  constexpr std::int64_t kSums = 8;
  const hn::CappedTag<double, kSums> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::int64_t kStep = hn::MaxLanes(d);
  constexpr int kVectors = kSums / kStep;
  hn::Vec<decltype(d)> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  const auto add_eight = [&](const float* from) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) {
      const auto value = hn::PromoteTo(d, hn::LoadU(narrow, from + v * kStep));
      sums[v] = hn::MulAdd(value, value, sums[v]);
    }
  };
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) add_eight(x + i);
  if (i < count) {
    float padded[kSums] = {};
    std::copy(x + i, x + count, padded);
    add_eight(padded);
  }
  double s[kSums];
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[v], d, s + v * kStep);
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

double square_sum_block(const void* x, DType dtype, std::int64_t begin, std::int64_t count) {
  double sum = 0;
  with_type(dtype, [&](auto tag) HWY_ATTR {
    const auto* from = static_cast<const decltype(tag)*>(x) + begin;
    if constexpr (std::is_same_v<decltype(tag), float>) {
      sum = square_sum(from, count);
    } else {
      float wide[kNormBlock];
      for_lanes(count, [&](std::int64_t i, auto lanes)
                           HWY_ATTR { store(load(from + i, lanes), wide + i, lanes); });
      sum = square_sum(wide, count);
    }
  });
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace zero3d::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {
namespace {

HWY_EXPORT(convert_run);
HWY_EXPORT(add_run);
HWY_EXPORT(add_scaled_run);
HWY_EXPORT(sum_columns_rows);
HWY_EXPORT(scale_run);
HWY_EXPORT(fill_run);
HWY_EXPORT(square_sum_block);

constexpr std::int64_t kRun = 32768;      // elements of one task
constexpr std::int64_t kNormBlocks = 32;  // blocks of one task

template <typename Pointer>
Pointer at(Pointer data, DType dtype, std::int64_t element) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, std::byte, const std::byte>;
  return static_cast<Byte*>(data) + static_cast<std::size_t>(element) * size_of(dtype);
}

}  // namespace

void cpu::convert(const PairArgs& a) {
  parallel_for(a.count, kRun, [&a](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(convert_run)
    (at(a.from, a.from_dtype, begin), a.from_dtype, end - begin, at(a.to, a.to_dtype, begin),
     a.to_dtype);
  });
}

void cpu::add(const PairArgs& a) {
  parallel_for(a.count, kRun, [&a](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_run)
    (at(a.from, a.from_dtype, begin), a.from_dtype, end - begin, at(a.to, a.to_dtype, begin),
     a.to_dtype);
  });
}

void cpu::copy_columns(const CopyColumnsArgs& a) {
  const std::int64_t grain = std::max<std::int64_t>(1, kRun / std::max<std::int64_t>(1, a.bytes));
  parallel_for(a.rows, grain, [&a](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      std::memcpy(static_cast<std::byte*>(a.to.data) + row * a.to.stride * a.element,
                  static_cast<const std::byte*>(a.from.data) + row * a.from.stride * a.element,
                  static_cast<std::size_t>(a.bytes));
  });
}

void cpu::sum_columns(const SumColumnsArgs& a) {
  const std::int64_t grain = std::max<std::int64_t>(1, kRun / std::max<std::int64_t>(1, a.width));
  parallel_for(a.rows, grain, [&a](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(sum_columns_rows)(a, begin, end);
  });
}

void cpu::add_scaled(const AddScaledArgs& a) {
  const PairArgs& p = a.pair;
  parallel_for(p.count, kRun, [&a, &p](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_scaled_run)
    (at(p.from, p.from_dtype, begin), p.from_dtype, end - begin, at(p.to, p.to_dtype, begin),
     p.to_dtype, a.factor);
  });
}

void cpu::scale(const ScaleArgs& a) {
  parallel_for(a.count, kRun, [&a](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_run)(at(a.x, a.dtype, begin), a.dtype, end - begin, a.value);
  });
}

void cpu::fill(const ScaleArgs& a) {
  parallel_for(a.count, kRun, [&a](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(fill_run)(at(a.x, a.dtype, begin), a.dtype, end - begin, a.value);
  });
}

void cpu::square_sums(const SquareSumsArgs& a) {
  const std::int64_t blocks = (a.count + kNormBlock - 1) / kNormBlock;
  parallel_for(blocks, kNormBlocks, [&a](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * kNormBlock;
      a.sums[block] = HWY_DYNAMIC_DISPATCH(square_sum_block)(a.x, a.dtype, first,
                                                             std::min(kNormBlock, a.count - first));
    }
  });
}

}  // namespace zero3d::kernels
#endif  // HWY_ONCE
