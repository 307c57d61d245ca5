#include "zero3d/parallel/comm/launcher.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// The environment variable as a number >= 0; nothing when unset or no number.
std::optional<int> number(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  const std::string_view text(value);
  int result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (error != std::errc() || end != text.data() + text.size() || result < 0 || result > (1 << 30))
    return std::nullopt;
  return result;
}

std::optional<LaunchPromise> promise(const char* launcher, const char* variable, int added = 0) {
  const std::optional<int> value = number(variable);
  if (!value || *value + added < 2) return std::nullopt;
  return LaunchPromise{launcher, variable, *value, *value + added};
}

}  // namespace

std::optional<LaunchPromise> launch_promise() {
  for (const auto& [launcher, variable] :
       {std::pair("mpirun", "OMPI_COMM_WORLD_SIZE"), std::pair("mpiexec", "PMI_SIZE"),
        std::pair("mpirun of MVAPICH", "MV2_COMM_WORLD_SIZE"),
        std::pair("jsrun", "JSM_NAMESPACE_SIZE")}) {
    if (number(variable)) return promise(launcher, variable);
  }
  if (auto step = promise("srun", "SLURM_STEP_NUM_TASKS")) return step;
  if (auto pals = promise("mpiexec of PALS", "PALS_RANKID", 1)) return pals;
  if (auto pmix = promise("a PMIx launcher", "PMIX_RANK", 1)) return pmix;
  if (number("RANK") && number("LOCAL_RANK")) return promise("torchrun", "WORLD_SIZE");
  return std::nullopt;
}

std::string broken_promise(const std::optional<LaunchPromise>& promise, int ranks) {
  if (!promise || ranks != 1) return "";
  const bool at_least = promise->value != promise->processes;
  return concat(
      promise->launcher, " started ", at_least ? "at least " : "", promise->processes,
      " processes (", promise->variable, "=", promise->value,
      "), and MPI's world has 1 rank: each would train alone and write over the others. Start them "
      "by the mpirun of the MPI that zero3d was built with (mpirun -n ",
      promise->processes, " zero3d train ...), or one process with --ranks ", promise->processes,
      "; where one process alone is meant, unset ", promise->variable);
}

}  // namespace zero3d
