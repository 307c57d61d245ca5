// A build without NCCL.
#include "zero3d/core/error.h"
#include "zero3d/parallel/comm/nccl_communicator.h"

namespace zero3d {

bool built_with_nccl() { return false; }

std::unique_ptr<Communicator> make_nccl(std::unique_ptr<Communicator>, int) {
  throw_invalid(
      "this build has no NCCL; configure it with -DZERO3D_CUDA=ON (or cmake --preset cuda) where "
      "nccl.h and libnccl are found, in the folders of the CUDA Toolkit or of the system");
}

}  // namespace zero3d
