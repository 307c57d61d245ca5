#include "zero3d/device/cuda/cuda_call.h"

#include "zero3d/core/log.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

std::string description(cudaError_t code) {
  return concat(cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
}

}  // namespace

CudaError::CudaError(cudaError_t code, const char* call, const char* file, int line)
    : Error(ErrorKind::kInternal,
            concat("CUDA: ", description(code), " in ", call, " (", file, ":", line, ")")),
      code_(code) {}

void use_cuda_device(int device) { ZERO3D_CUDA(cudaSetDevice(device)); }

void log_cuda_failure(cudaError_t code, const char* call) noexcept {
  // A process that ends takes the driver away before statics are gone.
  if (code == cudaSuccess || code == cudaErrorCudartUnloading) return;
  log_error(concat("CUDA: ", description(code), " in ", call));
}

}  // namespace zero3d
