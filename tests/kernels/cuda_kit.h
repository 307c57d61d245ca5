// What the tests of bodies on a GPU share: tensors that lie in host and in device memory with the
// same content, so that a CPU's body and a GPU's run on the same arguments, and comparison of what
// they left. Runs on a GPU or on an emulator of one.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/core/dtype.h"
#include "zero3d/core/random.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/stream_state.h"

namespace zero3d::kernels::test {

inline void expect_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw_invalid(concat(call, ": ", cudaGetErrorString(error)));
}
#define ZERO3D_EXPECT_CUDA(call) ::zero3d::kernels::test::expect_cuda(call, #call)

inline double read_element(const std::byte* data, DType dtype, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  switch (dtype) {
    case DType::f32:
      return reinterpret_cast<const float*>(data)[at];
    case DType::bf16:
      return to_float(reinterpret_cast<const bf16*>(data)[at]);
    case DType::f16:
      return to_float(reinterpret_cast<const f16*>(data)[at]);
    case DType::f64:
      return reinterpret_cast<const double*>(data)[at];
    case DType::i32:
      return reinterpret_cast<const std::int32_t*>(data)[at];
    case DType::i64:
      return static_cast<double>(reinterpret_cast<const std::int64_t*>(data)[at]);
    default:
      return static_cast<double>(data[at]);
  }
}

inline void write_element(std::byte* data, DType dtype, std::int64_t i, double value) {
  const auto at = static_cast<std::size_t>(i);
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::f32:
      reinterpret_cast<float*>(data)[at] = narrow;
      return;
    case DType::bf16:
      reinterpret_cast<bf16*>(data)[at] = to_bf16(narrow);
      return;
    case DType::f16:
      reinterpret_cast<f16*>(data)[at] = to_f16(narrow);
      return;
    case DType::f64:
      reinterpret_cast<double*>(data)[at] = value;
      return;
    case DType::i32:
      reinterpret_cast<std::int32_t*>(data)[at] = static_cast<std::int32_t>(value);
      return;
    case DType::i64:
      reinterpret_cast<std::int64_t*>(data)[at] = static_cast<std::int64_t>(value);
      return;
    default:
      data[at] = static_cast<std::byte>(value);
  }
}

/// Half the distance of neighbouring values near 1.
inline double precision_of(DType dtype) {
  return dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

/// Elements in host memory and, alike, in device memory.
struct Tensor {
  DType dtype = DType::f32;
  std::int64_t count = 0;
  std::byte* host = nullptr;
  std::byte* device = nullptr;

  std::size_t size() const { return static_cast<std::size_t>(count) * size_of(dtype); }
  template <typename T>
  T* on(bool gpu) const {
    return reinterpret_cast<T*>(gpu ? device : host);
  }
};

/// A stream and the tensors of one run. `offset`: elements by which each tensor starts off its
/// aligned allocation.
class CudaKit {
 public:
  explicit CudaKit(std::int64_t offset = 0) : offset_(offset) {
    ZERO3D_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaKit() {
    cudaStreamSynchronize(stream_);
    for (void* memory : memory_) cudaFree(memory);
    cudaStreamDestroy(stream_);
  }
  CudaKit(const CudaKit&) = delete;
  CudaKit& operator=(const CudaKit&) = delete;

  cudaStream_t stream() const { return stream_; }
  void sync() const { ZERO3D_EXPECT_CUDA(cudaStreamSynchronize(stream_)); }

  Tensor filled(DType dtype, std::int64_t count, const std::function<double(std::int64_t)>& value) {
    const std::size_t skip = static_cast<std::size_t>(offset_) * size_of(dtype);
    Tensor tensor{dtype, count, nullptr, nullptr};
    host_.emplace_back(skip + tensor.size() + 64);
    const auto address = reinterpret_cast<std::uintptr_t>(host_.back().data());
    tensor.host = host_.back().data() + (16 - address % 16) % 16 + skip;
    void* memory = nullptr;
    ZERO3D_EXPECT_CUDA(cudaMalloc(&memory, std::max<std::size_t>(1, skip + tensor.size())));
    memory_.push_back(memory);
    tensor.device = static_cast<std::byte*>(memory) + skip;
    for (std::int64_t i = 0; i < count; ++i) write_element(tensor.host, dtype, i, value(i));
    ZERO3D_EXPECT_CUDA(cudaMemcpyAsync(tensor.device, tensor.host, tensor.size(),
                                       cudaMemcpyHostToDevice, stream_));
    sync();
    return tensor;
  }
  /// Normal values times `scale`, the same for the same `name`.
  Tensor random(DType dtype, std::int64_t count, const char* name, double scale = 1) {
    const std::uint64_t stream = hash_name(name, std::strlen(name));
    return filled(dtype, count, [&](std::int64_t i) {
      return scale * random_normal(1, stream, static_cast<std::uint64_t>(i));
    });
  }
  /// Filled with a value that no result should have.
  Tensor output(DType dtype, std::int64_t count) {
    return filled(dtype, count, [](std::int64_t) { return -123.0; });
  }
  /// What lies in device memory after all work enqueued.
  std::vector<std::byte> read(const Tensor& tensor) const {
    std::vector<std::byte> bytes(tensor.size());
    ZERO3D_EXPECT_CUDA(cudaMemcpyAsync(bytes.data(), tensor.device, tensor.size(),
                                       cudaMemcpyDeviceToHost, stream_));
    sync();
    return bytes;
  }

  /// The CPU left in host memory what the GPU left in device memory: to the bit, NaN aside.
  void expect_same(const Tensor& tensor, const std::string& what) const {
    const std::vector<std::byte> got = read(tensor);
    const std::size_t size = size_of(tensor.dtype);
    for (std::int64_t i = 0; i < tensor.count; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * size;
      if (std::memcmp(got.data() + at, tensor.host + at, size) == 0) continue;
      const double is = read_element(got.data(), tensor.dtype, i);
      const double wanted = read_element(tensor.host, tensor.dtype, i);
      if (std::isnan(is) && std::isnan(wanted)) continue;
      FAIL() << what << " " << name_of(tensor.dtype) << ": element " << i << " of " << tensor.count
             << " is " << is << " on the GPU, " << wanted << " on the CPU";
    }
  }
  /// |gpu - cpu| <= ulps * precision * |cpu| + floor, elementwise; reports the worst element.
  void expect_close(const Tensor& tensor, double ulps, double floor,
                    const std::string& what) const {
    const std::vector<std::byte> got = read(tensor);
    double worst = 0;
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < tensor.count; ++i) {
      const double is = read_element(got.data(), tensor.dtype, i);
      const double wanted = read_element(tensor.host, tensor.dtype, i);
      if (is == wanted || (std::isnan(is) && std::isnan(wanted))) continue;
      double excess =
          std::abs(is - wanted) / (ulps * precision_of(tensor.dtype) * std::abs(wanted) + floor);
      if (std::isnan(excess)) excess = HUGE_VAL;
      if (excess <= worst) continue;
      worst = excess;
      at = i;
    }
    EXPECT_LE(worst, 1) << what << " " << name_of(tensor.dtype) << ": element " << at << " of "
                        << tensor.count << " is " << read_element(got.data(), tensor.dtype, at)
                        << " on the GPU, " << read_element(tensor.host, tensor.dtype, at)
                        << " on the CPU";
  }

 private:
  std::int64_t offset_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::vector<std::byte>> host_;
  std::vector<void*> memory_;
};

/// body(dtype, offset) for every float dtype, aligned and not.
inline void for_dtypes(const std::function<void(DType, std::int64_t)>& body) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t offset : {0, 1}) {
      SCOPED_TRACE(concat(name_of(dtype), " at offset ", offset));
      body(dtype, offset);
    }
}

}  // namespace zero3d::kernels::test
