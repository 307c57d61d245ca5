// Sums in rank order on the GPU, with the CPU's bits.
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/launch.cuh"

namespace zero3d::kernels::cuda {
namespace {

constexpr int kMostInputs = 256;  // whose addresses fit a launch's parameters

struct Inputs {
  const void* v[kMostInputs];
};

__device__ float rounded(float value, DType dtype) {
  if (dtype == DType::bf16) return round_to<bf16>(value);
  if (dtype == DType::f16) return round_to<f16>(value);
  return value;
}

/// wire: f32 where values are not rounded on their way.
template <typename In, typename Out>
struct Sum {
  Inputs inputs;
  int count;
  Out* out;
  float scale_in, scale_out;
  DType wire;

  template <int n>
  __device__ void at(std::int64_t i) const {
    Floats<n> sum;
    for (int rank = 0; rank < count; ++rank) {
      const Floats<n> value = load<n>(static_cast<const In*>(inputs.v[rank]) + i);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const float term = rounded(__fmul_rn(value.v[k], scale_in), wire);
        sum.v[k] = rank == 0 ? term : __fadd_rn(sum.v[k], term);
      }
    }
    store(each<n>([&](int k) { return rounded(__fmul_rn(sum.v[k], scale_out), wire); }), out + i);
  }
};

}  // namespace

void reduce_sum(const ReduceSumArgs& a, NativeStream stream) {
  const std::size_t ranks = a.inputs.size();
  if (ranks > kMostInputs)
    throw_invalid(concat("reduce_sum: expected at most ", kMostInputs, " inputs, found ", ranks));
  Inputs inputs{};
  std::copy(a.inputs.begin(), a.inputs.end(), inputs.v);
  bool wide = aligned({a.out});
  for (const void* input : a.inputs) wide = wide && aligned({input});
  with_type(a.in_dtype, [&](auto in) {
    with_type(a.out_dtype, [&](auto out) {
      for_elements("reduce_sum", stream, a.count, wide,
                   Sum<decltype(in), decltype(out)>{inputs, static_cast<int>(ranks),
                                                    static_cast<decltype(out)*>(a.out), a.scale_in,
                                                    a.scale_out, a.wire.value_or(DType::f32)});
    });
  });
}

}  // namespace zero3d::kernels::cuda
