#include "machine_memory.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/offload/swap_folder.h"

namespace zero3d::tools {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/// The number that a file consists of; "max" is none.
std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  std::int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

/// Of a file of lines "name number ...", the number behind `name`.
std::optional<std::int64_t> line_of(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    std::int64_t value = 0;
    if (words >> first >> value && first == name) return value;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* use;
  const char* cache;  ///< In memory.stat.
};
constexpr GroupFiles kVersion2 = {"/memory.max", "/memory.current", "inactive_file"};
constexpr GroupFiles kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                  "total_inactive_file"};

/// What one group leaves, by the files of its folder.
std::int64_t left_in(const std::string& folder, const GroupFiles& files) {
  const std::optional<std::int64_t> limit = number_in(folder + files.limit);
  const std::optional<std::int64_t> use = number_in(folder + files.use);
  if (!limit || !use) return kUnlimited;
  const std::int64_t cache = line_of(folder + "/memory.stat", files.cache).value_or(0);
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *use - cache));
}

/// The least that the groups from `path` up to the root of `mount` leave.
std::int64_t left_above(const std::string& mount, std::string path, const GroupFiles& files) {
  std::int64_t left = left_in(mount, files);
  while (path.size() > 1) {
    left = std::min(left, left_in(mount + path, files));
    path.resize(path.rfind('/'));
  }
  return left;
}

/// Lines of /proc/self/cgroup: "0::/path" of version 2, "4:memory:/path" of version 1.
std::int64_t left_in_groups(const std::string& root) {
  std::int64_t left = kUnlimited;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (controllers == ",,")
      left = std::min(left, left_above(root + "/sys/fs/cgroup", path, kVersion2));
    if (controllers.find(",memory,") != std::string::npos)
      left = std::min(left, left_above(root + "/sys/fs/cgroup/memory", path, kVersion1));
  }
  return left;
}

}  // namespace

std::string existing_folder(const std::string& path) {
  std::error_code code;
  std::filesystem::path folder = std::filesystem::absolute(path, code);
  while (!std::filesystem::exists(folder, code) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder.string();
}

MachineMemory read_machine_memory(const std::string& root) {
  MachineMemory machine;
  if (const auto kib = line_of(root + "/proc/meminfo", "MemAvailable:"))
    machine = {*kib * 1024, "MemAvailable"};
  const std::int64_t group = left_in_groups(root);
  if (group < kUnlimited && (machine.available < 0 || group < machine.available))
    machine = {group, "the limit of its control group"};
  return machine;
}

int ranks_of_this_machine(Communicator& world) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string mine = host.data();
  const std::vector<std::string> all = world.exchange(mine);
  return static_cast<int>(std::count(all.begin(), all.end(), mine));
}

void require_machine_holds(const MemoryEstimate& plan, int ranks, const MachineMemory& machine,
                           std::initializer_list<Tier> tiers) {
  if (machine.available < 0) return;
  const std::int64_t needed = plan.total(tiers) + kRankOverhead;
  const std::int64_t share = machine.available / ranks;
  if (needed <= share) return;
  throw OutOfMemory(
      needed, "host",
      concat(
          "the plan needs ", format_bytes(needed), " for each rank (", plan.describe(tiers),
          "), and this machine has ", format_bytes(machine.available), " left (by ",
          machine.limited_by, ")",
          ranks == 1 ? "" : concat(", ", format_bytes(share), " for each of its ", ranks, " ranks"),
          ": take ",
          in_words(tiers.size() == kTiers ? machine_advice(plan.habits)
                                          : host_advice(plan.habits))));
}

void require_gpu_holds(const MemoryEstimate& plan, int ranks, std::int64_t free) {
  const std::int64_t needed = plan.total() + kGpuOverhead;
  if (needed <= free / ranks) return;
  throw OutOfMemory(
      needed, "device",
      concat("the plan needs ", format_bytes(needed), " of device memory for each rank (",
             plan.describe(), ", and ", format_bytes(kGpuOverhead),
             " that kernels work in), and the GPU has ", format_bytes(free), " free",
             ranks == 1
                 ? ""
                 : concat(", ", format_bytes(free / ranks), " for each of its ", ranks, " ranks"),
             ": take ", in_words(device_advice(plan.habits))));
}

void require_drives_hold(const MemoryEstimate& plan, int ranks, const OffloadSettings& offload) {
  struct Need {
    std::string folder;
    std::int64_t bytes = 0;
  };
  std::map<dev_t, Need> needs;  // paths may share a drive
  const auto add = [&](OffloadDevice device, const std::vector<std::string>& paths,
                       std::int64_t bytes) {
    if (device != OffloadDevice::nvme) return;
    const auto share = bytes / static_cast<std::int64_t>(paths.size());
    for (const std::string& path : paths) {
      const std::string folder = existing_folder(path);
      struct stat found = {};
      if (::stat(folder.c_str(), &found) != 0)
        throw IoError(path, errno, "cannot look at the folder of nvme_path");
      if (!S_ISDIR(found.st_mode)) throw IoError(path, ENOTDIR, "cannot make the folder");
      if (::access(folder.c_str(), W_OK | X_OK) != 0)
        throw IoError(folder, errno, "nvme_path is not to be written",
                      "; name a folder of yours, or give this one's rights to the user");
      Need& need = needs[found.st_dev];
      need.folder = folder;
      need.bytes += share * ranks;
    }
  };
  const std::int64_t parameters = plan.drives[Category::parameters];
  add(offload.optimizer.device, offload.optimizer.paths, plan.total_on_drives() - parameters);
  add(offload.parameters.device, offload.parameters.paths, parameters);
  for (const auto& [drive, need] : needs)
    check_free_space(
        need.folder, need.bytes,
        concat("what ", ranks, ranks == 1 ? " rank offloads" : " ranks offload", " to this drive"));
}

void require_address_space(int ranks, int threads) {
  constexpr std::int64_t kStreams = 6;  // a rank's, each a thread, beside the one that feeds them
  constexpr std::int64_t kLibraries = std::int64_t{256} << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  std::int64_t pages = 0;
  std::ifstream statm("/proc/self/statm");
  if (!(statm >> pages)) return;
  pthread_attr_t attributes;
  std::size_t stack = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  pthread_attr_getstacksize(&attributes, &stack);
  pthread_attr_destroy(&attributes);
  const std::int64_t all_threads = ranks * (kStreams + threads);
  const std::int64_t needed =
      pages * sysconf(_SC_PAGESIZE) + kLibraries + all_threads * static_cast<std::int64_t>(stack);
  if (static_cast<rlim_t>(needed) <= limit.rlim_cur) return;
  throw OutOfMemory(
      needed, "address space",
      concat("the process may have ", format_bytes(static_cast<std::int64_t>(limit.rlim_cur)),
             " of address space (ulimit -v), and ", ranks, " rank(s) of ", threads,
             " thread(s) need ", format_bytes(needed), ", of which ", all_threads, " stacks of ",
             format_bytes(static_cast<std::int64_t>(stack)),
             ": raise the limit, or use fewer --ranks or --threads or smaller stacks (ulimit -s)"));
}

}  // namespace zero3d::tools
