// LayerNorm and RMSNorm on the GPU. Input passes take a warp a row, or a block for long ones, which
// stay in the first-level cache between the passes over them; weight passes sum in the CPU's order.
#include <type_traits>

#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/column_blocks.cuh"
#include "zero3d/kernels/cuda/functions.cuh"
#include "zero3d/kernels/cuda/launch.cuh"

namespace zero3d::kernels::cuda {
namespace {

enum class Kind : std::uint8_t { kLayer, kRms, kRmsOnePlus };

/// RMSNorm rounds the normalised row to T before it multiplies; with 1 + weight it does not.
template <typename T, Kind kKind>
__device__ float round_inside(float value) {
  return kKind == Kind::kRms ? round_to<T>(value) : value;
}
template <Kind kKind>
__device__ float factor_of(float weight) {
  return kKind == Kind::kRmsOnePlus ? __fadd_rn(1.0f, weight) : weight;
}

struct RowPass {
  std::int64_t rows, width;
  float eps;
  const void *x, *weight, *bias, *dy, *residual;
  void* y;
  float *mean, *rstd;
  const float *saved_mean, *saved_rstd;
};

/// The row of the calling thread, kPerRow threads each; its threads count from `lane`.
template <int kPerRow>
struct Place {
  std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / kPerRow) + threadIdx.x / kPerRow;
  std::int64_t lane = threadIdx.x % kPerRow;
};

template <typename T, Kind kKind, int n, int kPerRow>
__global__ void __launch_bounds__(kThreads) forward_kernel(__grid_constant__ const RowPass a) {
  __shared__ float shared[kThreads / 32];
  const Place<kPerRow> at;
  if (at.row >= a.rows) return;
  const T* x = static_cast<const T*>(a.x) + at.row * a.width;
  const T* weight = static_cast<const T*>(a.weight);
  const T* bias = static_cast<const T*>(a.bias);
  T* y = static_cast<T*>(a.y) + at.row * a.width;
  const auto width = static_cast<float>(a.width);
  float mean = 0;
  if constexpr (kKind == Kind::kLayer) {
    float total = 0;
    for (std::int64_t i = at.lane * n; i < a.width; i += kPerRow * n) {
      const Floats<n> value = load<n>(x + i);
#pragma unroll
      for (int k = 0; k < n; ++k) total += value.v[k];
    }
    mean = block_sum<kPerRow>(total, shared) / width;
  }
  float squares = 0;
  for (std::int64_t i = at.lane * n; i < a.width; i += kPerRow * n) {
    const Floats<n> value = load<n>(x + i);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float off = value.v[k] - mean;
      squares = __fmaf_rn(off, off, squares);
    }
  }
  squares = block_sum<kPerRow>(squares, shared);
  const float rstd = 1.0f / sqrtf(squares / width + a.eps);
  for (std::int64_t i = at.lane * n; i < a.width; i += kPerRow * n) {
    const Floats<n> value = load<n>(x + i), w = load<n>(weight + i);
    Floats<n> b;
    if constexpr (kKind == Kind::kLayer) b = load<n>(bias + i);
    store(each<n>([&](int k) {
            const float normal = (value.v[k] - mean) * rstd;
            if constexpr (kKind == Kind::kLayer) return __fmaf_rn(normal, w.v[k], b.v[k]);
            return round_inside<T, kKind>(normal) * factor_of<kKind>(w.v[k]);
          }),
          y + i);
  }
  if (at.lane != 0) return;
  if (a.mean != nullptr) a.mean[at.row] = mean;
  if (a.rstd != nullptr) a.rstd[at.row] = rstd;
}

/// dx = rstd (g - mean(g) - n mean(g n)) with g = dy * factor and n the normalised row; RMSNorm has
/// no mean(g), and its g is rounded where transformers' product is.
template <typename T, Kind kKind, int n, int kPerRow>
__global__ void __launch_bounds__(kThreads) backward_kernel(__grid_constant__ const RowPass a) {
  constexpr bool kRms = kKind != Kind::kLayer;
  __shared__ float shared[kThreads / 32];
  const Place<kPerRow> at;
  if (at.row >= a.rows) return;
  const T* x = static_cast<const T*>(a.x) + at.row * a.width;
  const T* dy = static_cast<const T*>(a.dy) + at.row * a.width;
  const T* weight = static_cast<const T*>(a.weight);
  const T* residual =
      a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + at.row * a.width;
  T* dx = static_cast<T*>(a.y) + at.row * a.width;
  const float rstd = a.saved_rstd[at.row];
  const float mean = kRms ? 0.0f : a.saved_mean[at.row];
  const auto gradient = [](float d, float w) {
    return round_inside<T, kKind>(d * factor_of<kKind>(w));
  };
  float sum_g = 0, sum_gn = 0;
  for (std::int64_t i = at.lane * n; i < a.width; i += kPerRow * n) {
    const Floats<n> value = load<n>(x + i), d = load<n>(dy + i), w = load<n>(weight + i);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float g = gradient(d.v[k], w.v[k]);
      sum_g += g;
      sum_gn = __fmaf_rn(g, (value.v[k] - mean) * rstd, sum_gn);
    }
  }
  const auto width = static_cast<float>(a.width);
  const float mean_g = kRms ? 0.0f : block_sum<kPerRow>(sum_g, shared) / width;
  const float mean_gn = block_sum<kPerRow>(sum_gn, shared) / width;
  for (std::int64_t i = at.lane * n; i < a.width; i += kPerRow * n) {
    const Floats<n> value = load<n>(x + i), d = load<n>(dy + i), w = load<n>(weight + i);
    Floats<n> result = each<n>([&](int k) {
      const float g = gradient(d.v[k], w.v[k]) - mean_g;
      return __fmaf_rn(-((value.v[k] - mean) * rstd), mean_gn, g) * rstd;
    });
    if (residual != nullptr) {
      const Floats<n> more = load<n>(residual + i);
#pragma unroll
      for (int k = 0; k < n; ++k) result.v[k] += more.v[k];
    }
    store(result, dx + i);
  }
}

template <typename T, Kind kKind>
struct WeightTerm {
  const T *x, *dy;
  const float *mean, *rstd;
  std::int64_t width;

  /// sums: of dy * n and, for LayerNorm, of dy.
  template <int n>
  __device__ void add(std::int64_t row, std::int64_t column, Floats<n>* sums) const {
    const Floats<n> value = load<n>(x + row * width + column);
    const Floats<n> g = load<n>(dy + row * width + column);
    const float center = kKind == Kind::kLayer ? mean[row] : 0.0f;
    const float factor = rstd[row];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float off = kKind == Kind::kLayer ? __fsub_rn(value.v[k], center) : value.v[k];
      const float normal = round_inside<T, kKind>(__fmul_rn(off, factor));
      sums[0].v[k] = __fmaf_rn(g.v[k], normal, sums[0].v[k]);
      if constexpr (kKind == Kind::kLayer) sums[1].v[k] = __fadd_rn(sums[1].v[k], g.v[k]);
    }
  }
};

/// Calls body(T, Kind) as compile-time values.
template <typename Body>
void with_kind(const NormArgs& a, const Body& body) {
  with_type(a.dtype, [&](auto tag) {
    if (!a.rms) {
      body(tag, std::integral_constant<Kind, Kind::kLayer>());
    } else if (!a.one_plus_weight) {
      body(tag, std::integral_constant<Kind, Kind::kRms>());
    } else {
      body(tag, std::integral_constant<Kind, Kind::kRmsOnePlus>());
    }
  });
}

constexpr std::int64_t kWarpRow = 1024;  // elements a row at most for a warp to take it

template <typename T, Kind kKind, int n, int kPerRow>
void run_rows(const NormArgs& a, bool backward, NativeStream stream) {
  const RowPass pass{a.rows,     a.width, a.eps,  a.x,    a.weight,     a.bias,      a.dy,
                     a.residual, a.y,     a.mean, a.rstd, a.saved_mean, a.saved_rstd};
  const auto blocks = static_cast<unsigned>(divided_up(a.rows, kThreads / kPerRow));
  if (backward) {
    backward_kernel<T, kKind, n, kPerRow><<<blocks, kThreads, 0, stream>>>(pass);
  } else {
    forward_kernel<T, kKind, n, kPerRow><<<blocks, kThreads, 0, stream>>>(pass);
  }
}

void row_pass(const char* what, const NormArgs& a, bool backward, NativeStream stream) {
  if (a.rows == 0 || a.width == 0) return;
  const bool wide = aligned({a.x, a.weight, a.bias, a.dy, a.residual, a.y}) && wide_rows({a.width});
  with_kind(a, [&](auto tag, auto kind) {
    using T = decltype(tag);
    if (a.width <= kWarpRow) {
      wide ? run_rows<T, kind(), kWide, 32>(a, backward, stream)
           : run_rows<T, kind(), 1, 32>(a, backward, stream);
    } else {
      wide ? run_rows<T, kind(), kWide, kThreads>(a, backward, stream)
           : run_rows<T, kind(), 1, kThreads>(a, backward, stream);
    }
  });
  check_launch(what);
}

}  // namespace

void norm_forward(const NormArgs& a, NativeStream stream) {
  row_pass("norm forward", a, false, stream);
}

void norm_backward_input(const NormArgs& a, NativeStream stream) {
  row_pass("norm backward", a, true, stream);
}

void norm_backward_weight(const NormArgs& a, NativeStream stream) {
  with_kind(a, [&](auto tag, auto kind) {
    using T = decltype(tag);
    const WeightTerm<T, kind()> term{static_cast<const T*>(a.x), static_cast<const T*>(a.dy),
                                     a.saved_mean, a.saved_rstd, a.width};
    const bool wide = aligned({a.x, a.dy});
    if constexpr (kind() == Kind::kLayer) {
      sum_columns("norm backward weight", stream, a.rows, a.width, wide, term, {a.dweight, a.dbias},
                  a.gradient_dtype, a.accumulate);
    } else {
      sum_columns("norm backward weight", stream, a.rows, a.width, wide, term, {a.dweight},
                  a.gradient_dtype, a.accumulate);
    }
  });
}

}  // namespace zero3d::kernels::cuda
