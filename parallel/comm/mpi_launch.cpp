// What MPI launchers tell a process by its environment; needs no MPI.
#include <cstdlib>
#include <string_view>

#include "zero3d/parallel/comm/mpi_communicator.h"

namespace zero3d {
namespace {

/// The environment variable as a number >= 0, -1 when unset or no number.
int number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return -1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return end != text && *end == '\0' && value >= 0 && value < (1L << 30) ? static_cast<int>(value)
                                                                         : -1;
}

}  // namespace

bool MpiCommOptions::checks_by_default() {
#ifdef ZERO3D_HAZARD_CHECKS
  return true;
#else
  const char* value = std::getenv("ZERO3D_CHECK");
  return value != nullptr && std::string_view(value) == "1";
#endif
}

MpiLaunch mpi_launch() {
  // OpenMPI's mpiexec; then Hydra (MPICH, Intel MPI) and Slurm's PMI.
  constexpr const char* kNames[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                       {"PMI_RANK", "PMI_SIZE"}};
  for (const auto& [rank_name, size_name] : kNames) {
    const int rank = number(rank_name);
    const int size = number(size_name);
    if (rank >= 0 && size > rank) return {true, rank, size};
  }
  return {};
}

}  // namespace zero3d
