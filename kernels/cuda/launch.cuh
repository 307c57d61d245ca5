// How bodies start their kernels: the grid for a number of elements or rows, dtypes as types, what
// is aligned, and errors as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "zero3d/core/dtype.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/cuda/native.h"
#include "zero3d/kernels/cuda/vectors.cuh"

namespace zero3d::kernels::cuda {

/// Throws Error(kInternal) unless `error` is success.
inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw Error(ErrorKind::kInternal, concat(what, ": CUDA reports ", cudaGetErrorName(error), " (",
                                             cudaGetErrorString(error), ")"));
}
/// Of the kernel that was just started.
inline void check_launch(const char* what) { check_cuda(cudaGetLastError(), what); }

inline constexpr int kThreads = 256;
/// Blocks beyond which they take more work each: several times what a large GPU holds at once.
inline constexpr std::int64_t kMostBlocks = 4096;

inline std::int64_t divided_up(std::int64_t count, std::int64_t by) {
  return (count + by - 1) / by;
}
inline unsigned grid_of(std::int64_t blocks) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMostBlocks));
}

inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers)
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) return false;
  return true;
}
/// Rows so far apart, in elements, are all as aligned as the first.
inline bool wide_rows(std::initializer_list<std::int64_t> strides) {
  for (const std::int64_t stride : strides)
    if (stride % kWide != 0) return false;
  return true;
}

/// body(T{}) with the T of `dtype`, one of f32, bf16, f16 (checked when the kernel was enqueued).
template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::f32) {
    body(float{});
  } else if (dtype == DType::bf16) {
    body(bf16{});
  } else {
    body(f16{});
  }
}

template <int kWidth, typename Body>
__global__ void __launch_bounds__(kThreads)
    elements_kernel(std::int64_t count, __grid_constant__ const Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t groups = count / kWidth;
  for (std::int64_t group = first; group < groups; group += step)
    body.template at<kWidth>(group * kWidth);
  if constexpr (kWidth > 1)
    if (groups * kWidth + first < count) body.template at<1>(groups * kWidth + first);
}

/// body.at<n>(i) for all elements, n at a time from a multiple of n on; `wide`: all pointers of the
/// body are aligned.
template <typename Body>
void for_elements(const char* what, NativeStream stream, std::int64_t count, bool wide,
                  const Body& body) {
  if (count <= 0) return;
  if (wide) {
    elements_kernel<kWide>
        <<<grid_of(divided_up(count, kWide * kThreads)), kThreads, 0, stream>>>(count, body);
  } else {
    elements_kernel<1><<<grid_of(divided_up(count, kThreads)), kThreads, 0, stream>>>(count, body);
  }
  check_launch(what);
}

template <int kWidth, typename Body>
__global__ void __launch_bounds__(kThreads, 4)
    matrix_kernel(std::int64_t rows, std::int64_t columns, __grid_constant__ const Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kWidth;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y)
    for (std::int64_t column = first; column < columns; column += step)
      body.template at<kWidth>(row, column);
}

/// body.at<n>(row, column) for all elements of a matrix; `wide`: all pointers of the body are
/// aligned, and all rows' lengths and strides are multiples of kWide.
template <typename Body>
void for_matrix(const char* what, NativeStream stream, std::int64_t rows, std::int64_t columns,
                bool wide, const Body& body) {
  if (rows <= 0 || columns <= 0) return;
  const std::int64_t groups = wide ? columns / kWide : columns;
  const auto threads =
      static_cast<unsigned>(std::clamp<std::int64_t>(divided_up(groups, 32) * 32, 32, kThreads));
  const std::int64_t across = std::min<std::int64_t>(divided_up(groups, threads), 1024);
  const std::int64_t down =
      std::min<std::int64_t>(rows, std::max<std::int64_t>(1, 16 * kMostBlocks / across));
  const dim3 grid(static_cast<unsigned>(across),
                  static_cast<unsigned>(std::min<std::int64_t>(down, 65535)));
  if (wide) {
    matrix_kernel<kWide><<<grid, threads, 0, stream>>>(rows, columns, body);
  } else {
    matrix_kernel<1><<<grid, threads, 0, stream>>>(rows, columns, body);
  }
  check_launch(what);
}

}  // namespace zero3d::kernels::cuda
