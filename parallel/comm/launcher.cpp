#include "zero3d/parallel/comm/launcher.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

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

/// -1 when no launcher says.
int told_local_rank() {
  for (const char* variable :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID", "LOCAL_RANK"})
    if (const std::optional<int> value = number(variable)) return *value;
  return -1;
}

/// A name that no other machine has: two may bear one host name, and containers of one machine,
/// with GPUs of their own, run on one system.
std::string machine() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return concat(name, " ", boot);
}

}  // namespace

std::optional<LaunchPromise> launch_promise() {
  for (const auto& [launcher, variable] :
       {std::pair("mpirun", "OMPI_COMM_WORLD_SIZE"), std::pair("mpiexec", "PMI_SIZE")}) {
    if (number(variable)) return promise(launcher, variable);
  }
  if (auto step = promise("srun", "SLURM_STEP_NUM_TASKS")) return step;
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

int local_rank(std::span<const RankPlace> ranks, int rank) {
  const RankPlace& own = ranks[static_cast<std::size_t>(rank)];
  std::set<int> told;
  int here = 0, before = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].machine != own.machine) continue;
    ++here;
    if (r < static_cast<std::size_t>(rank)) ++before;
    if (ranks[r].local_rank >= 0) told.insert(ranks[r].local_rank);
  }
  return static_cast<int>(told.size()) == here ? own.local_rank : before;
}

int local_rank(Communicator& world) {
  std::vector<RankPlace> ranks;
  for (const std::string& value : world.exchange(concat(told_local_rank(), " ", machine()))) {
    const std::size_t space = value.find(' ');
    ranks.push_back({value.substr(space + 1), std::stoi(value.substr(0, space))});
  }
  return local_rank(ranks, world.rank());
}

}  // namespace zero3d
