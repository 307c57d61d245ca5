// Elementwise passes on the GPU, and the squares of the gradient norm in the CPU's tree. The bits
// are the CPU's.
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/launch.cuh"
#include "zero3d/kernels/elementwise.h"

namespace zero3d::kernels::cuda {
namespace {

template <typename From, typename To>
struct Convert {
  const From* from;
  To* to;
  template <int n>
  __device__ void at(std::int64_t i) const {
    store(load<n>(from + i), to + i);
  }
};

/// kScaled: the product is rounded first.
template <typename From, typename To, bool kScaled>
struct Add {
  const From* from;
  To* to;
  float factor;
  template <int n>
  __device__ void at(std::int64_t i) const {
    const Floats<n> a = load<n>(to + i), b = load<n>(from + i);
    store(each<n>([&](int k) {
            return __fadd_rn(a.v[k], kScaled ? __fmul_rn(b.v[k], factor) : b.v[k]);
          }),
          to + i);
  }
};

template <typename T>
struct Scale {
  T* x;
  float factor;
  template <int n>
  __device__ void at(std::int64_t i) const {
    const Floats<n> value = load<n>(x + i);
    store(each<n>([&](int k) { return __fmul_rn(value.v[k], factor); }), x + i);
  }
};

template <typename T>
struct Fill {
  T* x;
  float value;
  template <int n>
  __device__ void at(std::int64_t i) const {
    store(each<n>([&](int) { return value; }), x + i);
  }
};

constexpr int kMostParts = 64;  // whose addresses fit a launch's parameters

template <typename T>
struct SumColumns {
  ConstRows parts[kMostParts];
  int count;
  Rows to;
  std::int64_t width;
  template <int n>
  __device__ void at(std::int64_t i) const {
    const std::int64_t row = i / width, column = i % width;
    const auto from = [&](int part) {
      const ConstRows& rows = parts[part];
      return load<n>(static_cast<const T*>(rows.data) + row * rows.stride + column);
    };
    Floats<n> sum = from(0);
    for (int part = 1; part < count; ++part) {
      const Floats<n> value = from(part);
      sum = each<n>([&](int k) { return __fadd_rn(sum.v[k], value.v[k]); });
    }
    store(sum, static_cast<T*>(to.data) + row * to.stride + column);
  }
};

/// body(from, to) as typed pointers.
template <typename Body>
void with_pair(const PairArgs& a, const Body& body) {
  with_type(a.from_dtype, [&](auto from) {
    with_type(a.to_dtype, [&](auto to) {
      body(static_cast<const decltype(from)*>(a.from), static_cast<decltype(to)*>(a.to));
    });
  });
}

template <typename From, typename To>
Convert<From, To> convert_of(const From* from, To* to) {
  return {from, to};
}
template <bool kScaled, typename From, typename To>
Add<From, To, kScaled> add_of(const From* from, To* to, float factor) {
  return {from, to, factor};
}

constexpr int kBlocksAtOnce = 32;  // norm blocks of one thread block
constexpr int kPart = 256;         // elements of each that lie in shared memory at once
constexpr int kRow = kPart + 8;    // so that threads of a warp read different banks

/// Eight threads sum a norm block: element j goes to partial sum j % 8, and the eight are added as
/// a binary tree. Elements come by way of shared memory, in wide loads.
template <typename T, int n>
__global__ void __launch_bounds__(kThreads)
    square_sums_kernel(const T* x, std::int64_t count, std::int64_t blocks, double* sums) {
  __shared__ float part[kBlocksAtOnce * kRow];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kBlocksAtOnce;
  const int own = static_cast<int>(threadIdx.x) / 8, lane = static_cast<int>(threadIdx.x) % 8;
  double sum = 0;
  for (int begin = 0; begin < kNormBlock; begin += kPart) {
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x) * n; e < kBlocksAtOnce * kPart; e += kThreads * n) {
      const int block = e / kPart, column = e % kPart;
      const std::int64_t i = (first + block) * kNormBlock + begin + column;
      float* to = part + block * kRow + column;
      if (i + n <= count) {
        const Floats<n> value = load<n>(x + i);
#pragma unroll
        for (int k = 0; k < n; ++k) to[k] = value.v[k];
      } else {
        for (int k = 0; k < n; ++k) to[k] = i + k < count ? widen(x[i + k]) : 0.0f;
      }
    }
    __syncthreads();
    for (int k = 0; k < kPart / 8; ++k) {
      const double value = part[own * kRow + 8 * k + lane];
      sum = __fma_rn(value, value, sum);
    }
  }
#pragma unroll
  for (int step = 1; step < 8; step *= 2)
    sum = __dadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
  if (lane == 0 && first + own < blocks) sums[first + own] = sum;
}

}  // namespace

void convert(const PairArgs& a, NativeStream stream) {
  with_pair(a, [&](auto* from, auto* to) {
    for_elements("convert", stream, a.count, aligned({from, to}), convert_of(from, to));
  });
}

void add(const PairArgs& a, NativeStream stream) {
  with_pair(a, [&](auto* from, auto* to) {
    for_elements("add", stream, a.count, aligned({from, to}), add_of<false>(from, to, 1));
  });
}

void add_scaled(const AddScaledArgs& a, NativeStream stream) {
  with_pair(a.pair, [&](auto* from, auto* to) {
    for_elements("add_scaled", stream, a.pair.count, aligned({from, to}),
                 add_of<true>(from, to, a.factor));
  });
}

void copy_columns(const CopyColumnsArgs& a, NativeStream stream) {
  if (a.rows == 0 || a.bytes == 0) return;
  check_cuda(cudaMemcpy2DAsync(a.to.data, static_cast<std::size_t>(a.to.stride * a.element),
                               a.from.data, static_cast<std::size_t>(a.from.stride * a.element),
                               static_cast<std::size_t>(a.bytes), static_cast<std::size_t>(a.rows),
                               cudaMemcpyDeviceToDevice, stream),
             "copy_columns");
}

void sum_columns(const SumColumnsArgs& a, NativeStream stream) {
  const std::size_t parts = a.parts.size();
  if (parts > kMostParts)
    throw_invalid(concat("sum_columns: expected at most ", kMostParts, " parts, found ", parts));
  bool wide = wide_rows({a.width, a.to.stride}) && aligned({a.to.data});
  for (const ConstRows& part : a.parts)
    wide = wide && wide_rows({part.stride}) && aligned({part.data});
  with_type(a.dtype, [&](auto tag) {
    SumColumns<decltype(tag)> body{{}, static_cast<int>(parts), a.to, a.width};
    std::copy(a.parts.begin(), a.parts.end(), body.parts);
    for_elements("sum_columns", stream, a.rows * a.width, wide, body);
  });
}

void scale(const ScaleArgs& a, NativeStream stream) {
  with_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_elements("scale", stream, a.count, aligned({a.x}), Scale<T>{static_cast<T*>(a.x), a.value});
  });
}

void fill(const ScaleArgs& a, NativeStream stream) {
  with_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_elements("fill", stream, a.count, aligned({a.x}), Fill<T>{static_cast<T*>(a.x), a.value});
  });
}

void square_sums(const SquareSumsArgs& a, NativeStream stream) {
  const std::int64_t blocks = divided_up(a.count, kNormBlock);
  if (blocks == 0) return;
  with_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto* x = static_cast<const T*>(a.x);
    const auto grid = static_cast<unsigned>(divided_up(blocks, kBlocksAtOnce));
    if (aligned({x})) {
      square_sums_kernel<T, kWide><<<grid, kThreads, 0, stream>>>(x, a.count, blocks, a.sums);
    } else {
      square_sums_kernel<T, 1><<<grid, kThreads, 0, stream>>>(x, a.count, blocks, a.sums);
    }
  });
  check_launch("square_sums");
}

}  // namespace zero3d::kernels::cuda
