// A build without CUDA has no stream that asks for this.
#include "zero3d/core/error.h"
#include "zero3d/parallel/comm/mover.h"

namespace zero3d::detail {

std::unique_ptr<Mover> make_cuda_mover(CudaStreamHandle) {
  throw_internal(__FILE__, __LINE__, "make_cuda_mover", "a CUDA stream in a build without CUDA");
}

}  // namespace zero3d::detail
