// Calls of the CUDA runtime that throw. Only for sources that are built with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "zero3d/core/error.h"

namespace zero3d {

/// A call of CUDA failed: the call, what CUDA says of it, and file and line.
class CudaError : public Error {
 public:
  CudaError(cudaError_t code, const char* call, const char* file, int line);
  cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

/// Makes a device the calling thread's current one, and the one before it again at its end.
class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int device);
  ~CudaDeviceScope();
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

 private:
  int before_ = 0;
};

}  // namespace zero3d

/// Throws CudaError unless the call, which gives a cudaError_t, succeeds.
#define ZERO3D_CUDA(call)                                                              \
  do {                                                                                 \
    const cudaError_t zero3d_code = (call);                                            \
    if (zero3d_code != cudaSuccess)                                                    \
      throw ::zero3d::CudaError(zero3d_code, #call, __FILE__, __LINE__);               \
  } while (false)
