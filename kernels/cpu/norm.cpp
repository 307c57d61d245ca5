// LayerNorm and RMSNorm on the CPU. Input passes run over blocks of rows, weight passes over blocks
// of columns; each row or column is summed by one task in a fixed order.
#include "zero3d/kernels/cpu/norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/norm.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

/// What the passes are compiled for.
enum class Kind : std::uint8_t { kLayer, kRms, kRmsOnePlus };

/// RMSNorm rounds the normalised row to T before it multiplies; with 1 + weight it does not.
template <typename T, Kind kKind>
HWY_INLINE Vec32 round_inside(Vec32 value) {
  return kKind == Kind::kRms ? round_to<T>(value) : value;
}

template <Kind kKind>
HWY_INLINE Vec32 factor_of(Vec32 weight) {
  return kKind == Kind::kRmsOnePlus ? hn::Add(set(1.0f), weight) : weight;
}

constexpr std::int64_t kRowBlock = 128;  // rows summed before they join a column's total

template <typename T>
void layer_norm_row(const NormArgs& a, std::int64_t row) {
  const T* x = static_cast<const T*>(a.x) + row * a.width;
  const T* weight = static_cast<const T*>(a.weight);
  const T* bias = static_cast<const T*>(a.bias);
  T* y = static_cast<T*>(a.y) + row * a.width;
  float total = 0, squares = 0;
  sum_over<1>(a.width, &total, [&](std::int64_t i, auto lanes, Vec32* term) HWY_ATTR {
    term[0] = load(x + i, lanes);
  });
  const float mean = total / static_cast<float>(a.width);
  const Vec32 center = set(mean);
  sum_over<1>(a.width, &squares, [&](std::int64_t i, auto lanes, Vec32* term) HWY_ATTR {
    const Vec32 off = keep(hn::Sub(load(x + i, lanes), center), lanes);
    term[0] = hn::Mul(off, off);
  });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.width) + a.eps);
  const Vec32 factor = set(rstd);
  for_lanes(a.width, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const Vec32 normal = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
    store(hn::MulAdd(normal, load(weight + i, lanes), load(bias + i, lanes)), y + i, lanes);
  });
  if (a.mean != nullptr) a.mean[row] = mean;
  if (a.rstd != nullptr) a.rstd[row] = rstd;
}

template <typename T, Kind kKind>
void rms_norm_row(const NormArgs& a, std::int64_t row) {
  const T* x = static_cast<const T*>(a.x) + row * a.width;
  const T* weight = static_cast<const T*>(a.weight);
  T* y = static_cast<T*>(a.y) + row * a.width;
  float squares = 0;
  sum_over<1>(a.width, &squares, [&](std::int64_t i, auto lanes, Vec32* term) HWY_ATTR {
    const Vec32 value = load(x + i, lanes);
    term[0] = hn::Mul(value, value);
  });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.width) + a.eps);
  const Vec32 factor = set(rstd);
  for_lanes(a.width, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const Vec32 normal = round_inside<T, kKind>(hn::Mul(load(x + i, lanes), factor));
    store(hn::Mul(normal, factor_of<kKind>(load(weight + i, lanes))), y + i, lanes);
  });
  if (a.rstd != nullptr) a.rstd[row] = rstd;
}

/// dx = rstd (g - mean(g) - n mean(g n)) with g = dy * factor and n the normalised row; RMSNorm has
/// no mean(g), and its g is rounded where transformers' product is.
template <typename T, Kind kKind>
void norm_backward_row(const NormArgs& a, std::int64_t row) {
  constexpr bool kRms = kKind != Kind::kLayer;
  const T* x = static_cast<const T*>(a.x) + row * a.width;
  const T* dy = static_cast<const T*>(a.dy) + row * a.width;
  const T* weight = static_cast<const T*>(a.weight);
  const T* residual =
      a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + row * a.width;
  T* dx = static_cast<T*>(a.y) + row * a.width;
  const Vec32 rstd = set(a.saved_rstd[row]);
  const Vec32 center = set(kRms ? 0.0f : a.saved_mean[row]);
  const auto normal_at = [&](std::int64_t i, auto lanes) HWY_ATTR {
    return hn::Mul(kRms ? load(x + i, lanes) : hn::Sub(load(x + i, lanes), center), rstd);
  };
  const auto gradient_at = [&](std::int64_t i, auto lanes) HWY_ATTR {
    return round_inside<T, kKind>(
        hn::Mul(load(dy + i, lanes), factor_of<kKind>(load(weight + i, lanes))));
  };
  float sums[2] = {};  // of g and of g n
  sum_over<2>(a.width, sums, [&](std::int64_t i, auto lanes, Vec32* terms) HWY_ATTR {
    terms[0] = gradient_at(i, lanes);
    terms[1] = hn::Mul(terms[0], normal_at(i, lanes));
  });
  const Vec32 mean_g = set(kRms ? 0.0f : sums[0] / static_cast<float>(a.width));
  const Vec32 mean_gn = set(sums[1] / static_cast<float>(a.width));
  for_lanes(a.width, [&](std::int64_t i, auto lanes) HWY_ATTR {
    Vec32 g = gradient_at(i, lanes);
    if (!kRms) g = hn::Sub(g, mean_g);
    g = hn::Mul(hn::NegMulAdd(normal_at(i, lanes), mean_gn, g), rstd);
    if (residual != nullptr) g = hn::Add(g, load(residual + i, lanes));
    store(g, dx + i, lanes);
  });
}

template <typename Lanes>
HWY_INLINE void store_sum(Vec32 sum, DType dtype, void* to, std::int64_t column, bool accumulate,
                          Lanes lanes) {
  with_type(dtype, [&](auto tag) HWY_ATTR {
    auto* element = static_cast<decltype(tag)*>(to) + column;
    store(accumulate ? hn::Add(load(element, lanes), sum) : sum, element, lanes);
  });
}

/// Sums over all rows for kVectors vectors of columns from `column` on.
template <typename T, Kind kKind, int kVectors, typename Lanes>
HWY_INLINE void norm_backward_columns(const NormArgs& a, std::int64_t column, Lanes lanes) {
  constexpr bool kRms = kKind != Kind::kLayer;
  const T* x = static_cast<const T*>(a.x) + column;
  const T* dy = static_cast<const T*>(a.dy) + column;
  Vec32 dweight[kVectors], dbias[kVectors];
  for (int v = 0; v < kVectors; ++v) dweight[v] = dbias[v] = set(0);
  for (std::int64_t block = 0; block < a.rows; block += kRowBlock) {
    const std::int64_t end = HWY_MIN(block + kRowBlock, a.rows);
    Vec32 dweight_part[kVectors], dbias_part[kVectors];
    for (int v = 0; v < kVectors; ++v) dweight_part[v] = dbias_part[v] = set(0);
    for (std::int64_t row = block; row < end; ++row) {
      const Vec32 rstd = set(a.saved_rstd[row]);
      const Vec32 center = set(kRms ? 0.0f : a.saved_mean[row]);
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t at = row * a.width + v * static_cast<std::int64_t>(kLanes);
        const Vec32 g = load(dy + at, lanes);
        const Vec32 value = load(x + at, lanes);
        const Vec32 normal =
            round_inside<T, kKind>(hn::Mul(kRms ? value : hn::Sub(value, center), rstd));
        dweight_part[v] = hn::MulAdd(g, normal, dweight_part[v]);
        if (!kRms) dbias_part[v] = hn::Add(dbias_part[v], g);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      dweight[v] = hn::Add(dweight[v], dweight_part[v]);
      dbias[v] = hn::Add(dbias[v], dbias_part[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t at = column + v * static_cast<std::int64_t>(kLanes);
    if (a.dweight != nullptr)
      store_sum(dweight[v], a.gradient_dtype, a.dweight, at, a.accumulate, lanes);
    if (a.dbias != nullptr) store_sum(dbias[v], a.gradient_dtype, a.dbias, at, a.accumulate, lanes);
  }
}

template <typename T, Kind kKind>
void norm_backward_column_block(const NormArgs& a, std::int64_t begin, std::int64_t end) {
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  std::int64_t column = begin;
  for (; column + 4 * kStep <= end; column += 4 * kStep)
    norm_backward_columns<T, kKind, 4>(a, column, AllLanes{});
  for (; column + kStep <= end; column += kStep)
    norm_backward_columns<T, kKind, 1>(a, column, AllLanes{});
  if (column < end)
    norm_backward_columns<T, kKind, 1>(a, column,
                                       SomeLanes{static_cast<std::size_t>(end - column)});
}

/// Calls body(T, Kind) as compile-time values.
template <typename Body>
HWY_INLINE void with_kind(const NormArgs& a, const Body& body) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    if (!a.rms) {
      body(tag, std::integral_constant<Kind, Kind::kLayer>());
    } else if (!a.one_plus_weight) {
      body(tag, std::integral_constant<Kind, Kind::kRms>());
    } else {
      body(tag, std::integral_constant<Kind, Kind::kRmsOnePlus>());
    }
  });
}

void norm_forward_rows(const NormArgs& a, std::int64_t begin, std::int64_t end) {
  with_kind(a, [&](auto tag, auto kind) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      if constexpr (kind() == Kind::kLayer) {
        layer_norm_row<T>(a, row);
      } else {
        rms_norm_row<T, kind()>(a, row);
      }
    }
  });
}

void norm_backward_rows(const NormArgs& a, std::int64_t begin, std::int64_t end) {
  with_kind(a, [&](auto tag, auto kind) HWY_ATTR {
    for (std::int64_t row = begin; row < end; ++row)
      norm_backward_row<decltype(tag), kind()>(a, row);
  });
}

void norm_backward_weights(const NormArgs& a, std::int64_t begin, std::int64_t end) {
  with_kind(a, [&](auto tag, auto kind)
                   HWY_ATTR { norm_backward_column_block<decltype(tag), kind()>(a, begin, end); });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(norm_forward_rows);
HWY_EXPORT(norm_backward_rows);
HWY_EXPORT(norm_backward_weights);

namespace cpu {
namespace {

constexpr std::int64_t kColumnBlock = 64;

/// Rows of about 16,384 elements a task.
std::int64_t row_grain(std::int64_t width) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, width));
}

}  // namespace

void norm_forward(const NormArgs& args) {
  parallel_for(args.rows, row_grain(args.width), [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_forward_rows)(args, begin, end);
  });
}

void norm_backward_input(const NormArgs& args) {
  parallel_for(args.rows, row_grain(args.width), [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_backward_rows)(args, begin, end);
  });
}

void norm_backward_weight(const NormArgs& args) {
  parallel_for(args.width, kColumnBlock, [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_backward_weights)(args, begin, end);
  });
}

}  // namespace cpu
}  // namespace zero3d::kernels
#endif  // HWY_ONCE
