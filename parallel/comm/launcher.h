// What a launcher's environment says of how many processes it started, beside what MPI makes of
// them: where they do not meet, each would train alone and write over the others. And where a rank
// is on its machine, which its GPU follows.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

struct LaunchPromise {
  std::string launcher;  ///< "torchrun", "srun", ...
  std::string variable;  ///< Where it says so: "WORLD_SIZE".
  int value = 0;         ///< Of the variable.
  int processes = 0;     ///< What it comes to; of a rank, at least so many.
};

/// The first launcher whose environment promises more than one process: MPI's (PMI_SIZE,
/// OMPI_COMM_WORLD_SIZE, a PMIX_RANK above 0), srun (SLURM_STEP_NUM_TASKS: of the step, since a
/// batch script sees SLURM_NTASKS too), torchrun (RANK, LOCAL_RANK and WORLD_SIZE). Nothing when
/// an MPI launcher says that there is one. To be asked before MPI is initialised, which may set
/// these variables itself.
std::optional<LaunchPromise> launch_promise();

/// What is wrong, with both numbers and the lines to use, when there is a promise and the world has
/// `ranks` = 1; else "".
std::string broken_promise(const std::optional<LaunchPromise>& promise, int ranks);

/// The rank's place among the ranks of its machine, from 0 on: as the launchers of all of them say
/// (OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID, MPI_LOCALRANKID, LOCAL_RANK), or in the order of
/// ranks where they do not, or say one place twice, as threads of a process hear it. Collective and
/// host-blocking, like exchange().
int local_rank(Communicator& world);

/// What a rank of local_rank() tells the others, and what its place is among what all told.
struct RankPlace {
  std::string machine;
  int local_rank = -1;  ///< -1: no launcher says.
};
int local_rank(std::span<const RankPlace> ranks, int rank);

}  // namespace zero3d
