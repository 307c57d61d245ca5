// Which CPUs each rank's threads run on. Ranks that share a machine divide the CPUs that they are
// allowed into neighbouring shares, one NUMA node each where that comes out even.
#pragma once

#include <string>
#include <vector>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::tools {

struct Cpu {
  int id = 0;
  int node = 0;  ///< NUMA node.
  int core = 0;  ///< The lowest id among the hardware threads of one core.
};

/// What this process may use.
struct AllowedCpus {
  std::vector<Cpu> cpus;  ///< Of the affinity mask; ascending ids.
  /// By the CPU quota of the control group, where it is smaller than the mask: such CPUs are shared
  /// with others, and binding to them would only hinder.
  int quota = 0;

  /// Threads that can run at once.
  int count() const;
  bool exclusive() const { return quota == 0; }
};
/// `system` is the folder /sys, another one in tests.
AllowedCpus read_allowed_cpus(const std::string& system = "/sys");

/// Place `index` among `count` processes or threads that may use the same CPUs.
struct Share {
  int index = 0;
  int count = 1;
};
/// The share's CPUs, whole cores as far as they go; empty when binding would not help: fewer CPUs
/// than threads, or a quota.
std::vector<int> cpus_of_share(const AllowedCpus& allowed, const Share& share, int threads);

/// Among the ranks of `world`: those of this machine with this process's mask. Collective.
Share find_share(Communicator& world, const AllowedCpus& allowed);

/// Binds the calling thread, and what it starts, to `cpus`; false when the system refuses.
bool bind_this_thread(const std::vector<int>& cpus);

/// "0-3,8" for {0, 1, 2, 3, 8}.
std::string format_cpus(const std::vector<int>& cpus);
/// The inverse; what is no list gives an empty one.
std::vector<int> parse_cpus(const std::string& text);

}  // namespace zero3d::tools
