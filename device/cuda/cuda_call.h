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

/// Makes a device the calling thread's current one. It stays that: to go back to a device that the
/// process does not use would cost memory there.
void use_cuda_device(int device);

/// For destructors: a call that fails is a line in the log.
void log_cuda_failure(cudaError_t code, const char* call) noexcept;

}  // namespace zero3d

/// Throws CudaError unless the call, which gives a cudaError_t, succeeds.
#define ZERO3D_CUDA(call)                                                \
  do {                                                                   \
    const cudaError_t zero3d_code = (call);                              \
    if (zero3d_code != cudaSuccess)                                      \
      throw ::zero3d::CudaError(zero3d_code, #call, __FILE__, __LINE__); \
  } while (false)
