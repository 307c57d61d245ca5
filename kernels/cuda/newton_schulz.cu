// Newton-Schulz iterations' passes on the GPU. The polynomial has the CPU's bits; a norm's squares
// are added in fp64 in another order, the same every time.
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/functions.cuh"
#include "zero3d/kernels/cuda/launch.cuh"
#include "zero3d/kernels/cuda/stream_state.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d::kernels::cuda {
namespace {

struct Polynomial {
  PolynomialArgs p;
  template <int n>
  __device__ void at(std::int64_t row, std::int64_t i) const {
    const std::int64_t offset = row * p.rows + i;
    const Floats<n> x = load<n>(p.x + offset), y = load<n>(p.y + offset);
    store(each<n>([&](int k) {
            const float sum = __fadd_rn(__fmul_rn(p.b, x.v[k]), __fmul_rn(p.c, y.v[k]));
            return i + k == row ? __fadd_rn(sum, p.a) : sum;
          }),
          p.y + offset);
  }
};

/// to = from * factor, the factor in device memory or, without it, `scale`.
struct Rescale {
  const float* from;
  float* to;
  float scale;
  const float* factor;
  template <int n>
  __device__ void at(std::int64_t i) const {
    const Floats<n> value = load<n>(from + i);
    const float by = factor == nullptr ? scale : *factor;
    store(each<n>([&](int k) { return __fmul_rn(value.v[k], by); }), to + i);
  }
};

__global__ void __launch_bounds__(kThreads)
    factor_kernel(const double* sums, std::int64_t count, float scale, float* factor) {
  __shared__ double shared[kThreads / 32];
  double squares = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) squares += sums[i];
  squares = block_sum<kThreads>(squares, shared);
  if (threadIdx.x == 0)
    *factor = static_cast<float>(static_cast<double>(scale) / (sqrt(squares) + 1e-7));
}

}  // namespace

void matrix_polynomial(const PolynomialArgs& a, NativeStream stream) {
  for_matrix("matrix_polynomial", stream, a.rows, a.rows,
             aligned({a.x, a.y}) && wide_rows({a.rows}), Polynomial{a});
}

void rescale(const RescaleArgs& a, NativeStream stream) {
  float* factor = nullptr;
  if (a.normalise) {
    const std::int64_t blocks = divided_up(a.count, kNormBlock);
    std::byte* scratch =
        state_of(stream).scratch(static_cast<std::size_t>(blocks + 1) * sizeof(double));
    auto* sums = reinterpret_cast<double*>(scratch);
    factor = reinterpret_cast<float*>(sums + blocks);
    square_sums({a.from, DType::f32, a.count, sums}, stream);
    factor_kernel<<<1, kThreads, 0, stream>>>(sums, blocks, a.scale, factor);
    check_launch("rescale");
  }
  for_elements("rescale", stream, a.count, aligned({a.from, a.to}),
               Rescale{a.from, a.to, a.scale, factor});
}

}  // namespace zero3d::kernels::cuda
