// Sums down columns in the CPU's order: blocks of 128 rows each summed from the first row on, then
// the blocks' sums in their order. One kernel sums blocks, a second one adds them up.
#pragma once

#include "zero3d/kernels/cuda/launch.cuh"
#include "zero3d/kernels/cuda/stream_state.h"

namespace zero3d::kernels::cuda {

inline constexpr std::int64_t kRowBlock = 128;
inline constexpr int kColumnThreads = 64;

/// parts: [kSums, blocks, columns].
template <int kSums, int n, typename Term>
__global__ void __launch_bounds__(kColumnThreads)
    column_blocks_kernel(std::int64_t rows, std::int64_t columns, std::int64_t blocks,
                         __grid_constant__ const Term term, float* parts) {
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x) * n;
  if (column >= columns) return;
  for (std::int64_t block = blockIdx.y; block < blocks; block += gridDim.y) {
    const std::int64_t end = min((block + 1) * kRowBlock, rows);
    Floats<n> sums[kSums] = {};
#pragma unroll 4
    for (std::int64_t row = block * kRowBlock; row < end; ++row)
      term.template add<n>(row, column, sums);
#pragma unroll
    for (int s = 0; s < kSums; ++s) store(sums[s], parts + (s * blocks + block) * columns + column);
  }
}

template <typename Out>
__global__ void __launch_bounds__(kThreads)
    column_totals_kernel(std::int64_t columns, std::int64_t blocks, const float* parts, Out* out,
                         bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t block = 0; block < blocks; ++block)
    sum = __fadd_rn(sum, parts[block * columns + column]);
  if (accumulate) sum = __fadd_rn(widen(out[column]), sum);
  out[column] = narrow_to<Out>(sum);
}

/// outs[s] (columns elements of out_dtype; null: not wanted) = the sums of term number s (+ outs).
/// term.add<n>(row, column, sums) adds to sums[s]. `wide`: term's pointers are aligned.
template <int kSums, typename Term>
void sum_columns(const char* what, NativeStream stream, std::int64_t rows, std::int64_t columns,
                 bool wide, const Term& term, void* const (&outs)[kSums], DType out_dtype,
                 bool accumulate) {
  if (columns <= 0) return;
  const std::int64_t blocks = divided_up(rows, kRowBlock);
  auto* parts = reinterpret_cast<float*>(state_of(stream).scratch(
      static_cast<std::size_t>(kSums * blocks * columns) * sizeof(float) + 1));
  const auto down = static_cast<unsigned>(std::min<std::int64_t>(blocks, 65535));
  if (blocks == 0) {
    // Nothing to add up: totals of no blocks.
  } else if (wide && columns % kWide == 0) {
    const dim3 grid(static_cast<unsigned>(divided_up(columns, kColumnThreads * kWide)), down);
    column_blocks_kernel<kSums, kWide>
        <<<grid, kColumnThreads, 0, stream>>>(rows, columns, blocks, term, parts);
  } else {
    const dim3 grid(static_cast<unsigned>(divided_up(columns, kColumnThreads)), down);
    column_blocks_kernel<kSums, 1>
        <<<grid, kColumnThreads, 0, stream>>>(rows, columns, blocks, term, parts);
  }
  check_launch(what);
  with_type(out_dtype, [&](auto tag) {
    for (int s = 0; s < kSums; ++s)
      if (outs[s] != nullptr)
        column_totals_kernel<<<static_cast<unsigned>(divided_up(columns, kThreads)), kThreads, 0,
                               stream>>>(columns, blocks, parts + s * blocks * columns,
                                         static_cast<decltype(tag)*>(outs[s]), accumulate);
  });
  check_launch(what);
}

}  // namespace zero3d::kernels::cuda
