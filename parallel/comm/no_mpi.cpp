// The MPI communicator of a build without MPI: the same names, and an error that says so.
#include "zero3d/core/error.h"
#include "zero3d/parallel/comm/mpi_communicator.h"

namespace zero3d {
namespace {

[[noreturn]] void throw_without_mpi() {
  throw_invalid(
      "this build of zero3d has no MPI: configure it with -DZERO3D_WITH_MPI=ON, or start one "
      "process whose ranks are threads");
}

}  // namespace

bool built_with_mpi() { return false; }

MpiSession::MpiSession(std::chrono::milliseconds) { throw_without_mpi(); }
MpiSession::~MpiSession() { static_cast<void>(exceptions_); }

std::unique_ptr<Communicator> make_mpi_world(const MpiCommOptions&) { throw_without_mpi(); }

void run_mpi_rank(const std::function<void(Communicator&)>&, const MpiCommOptions&) {
  throw_without_mpi();
}

}  // namespace zero3d
