// What memory this machine has left for a run, and whether the run's plan fits: told before the
// first step, where the system would end the process without a word in the middle of it.
#pragma once

#include <cstdint>
#include <string>

#include "zero3d/engine/memory_estimate.h"
#include "zero3d/offload/offload_settings.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::tools {

struct MachineMemory {
  std::int64_t available = -1;  ///< Bytes; negative: the system does not tell.
  std::string limited_by;       ///< "MemAvailable" or "the limit of its control group".
};
/// The smaller of MemAvailable and what the process's control group and those around it leave, the
/// cache of files that can be dropped left out. `root` stands before /proc and /sys, for tests.
MachineMemory read_machine_memory(const std::string& root = "");

/// Ranks of `world` that run on this machine. Collective.
int ranks_of_this_machine(Communicator& world);

/// Throws OutOfMemory, with the numbers and what to change, when `ranks` of this machine with
/// `plan` each need more than it has; of the tiers in `tiers`.
void require_machine_holds(const MemoryEstimate& plan, int ranks, const MachineMemory& machine,
                           std::initializer_list<Tier> tiers = {Tier::device, Tier::pinned,
                                                                Tier::pageable});

/// The same of a GPU with `free` bytes that `ranks` share.
void require_gpu_holds(const MemoryEstimate& plan, int ranks, std::int64_t free);

/// Throws IoError when a drive has less free than `ranks` of this machine with `plan` each lay
/// there (a run lays all its files before the first step), or when its folder cannot be written.
void require_drives_hold(const MemoryEstimate& plan, int ranks, const OffloadSettings& offload);

/// The folder itself or, where it is still to be made, the nearest one around it.
std::string existing_folder(const std::string& path);

/// Throws OutOfMemory when the process's limit of address space (ulimit -v) has no room for the
/// stacks of `ranks` ranks of `threads` threads each and for what libraries map beside: refused
/// either, they end the process without a word.
void require_address_space(int ranks, int threads);

/// Stacks, kernels' scratch and generated code of a rank, outside its device.
inline constexpr std::int64_t kRankOverhead = std::int64_t{8} << 20;
/// What kernels of a GPU take beside a rank's device: workspace of matrix products, and room for
/// sums of blocks of rows, which grows with what they are given.
inline constexpr std::int64_t kGpuOverhead = std::int64_t{64} << 20;

}  // namespace zero3d::tools
