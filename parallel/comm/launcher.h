// What a launcher's environment says of how many processes it started, beside what MPI makes of
// them: where they do not meet, each would train alone and write over the others.
#pragma once

#include <optional>
#include <string>

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

}  // namespace zero3d
