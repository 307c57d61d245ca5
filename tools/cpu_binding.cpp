#include "cpu_binding.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "zero3d/core/text.h"

namespace zero3d::tools {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<int> affinity_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::map<int, int> nodes_of_cpus(const std::string& system) {
  std::map<int, int> nodes;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(system + "/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("node", 0) != 0 || name.find_first_not_of("0123456789", 4) != std::string::npos)
      continue;
    for (const int cpu : parse_cpus(first_line(entry.path().string() + "/cpulist")))
      nodes[cpu] = std::atoi(name.c_str() + 4);
  }
  return nodes;
}

/// CPUs' worth of the control group's quota, rounded up; 0: none.
int quota_of_group(const std::string& system) {
  std::istringstream line(first_line(system + "/fs/cgroup/cpu.max"));
  double quota = 0;
  double period = 0;
  if (!(line >> quota >> period) || period <= 0) {
    quota = std::atof(first_line(system + "/fs/cgroup/cpu/cpu.cfs_quota_us").c_str());
    period = std::atof(first_line(system + "/fs/cgroup/cpu/cpu.cfs_period_us").c_str());
  }
  if (!(quota > 0 && period > 0)) return 0;
  constexpr double kMostCpus = 1 << 20;
  return static_cast<int>(std::clamp(std::ceil(quota / period), 1.0, kMostCpus));
}

}  // namespace

int AllowedCpus::count() const {
  const int all = std::max(1, static_cast<int>(cpus.size()));
  return quota > 0 ? std::min(quota, all) : all;
}

AllowedCpus read_allowed_cpus(const std::string& system) {
  AllowedCpus allowed;
  const std::map<int, int> nodes = nodes_of_cpus(system);
  for (const int id : affinity_mask()) {
    const std::vector<int> siblings = parse_cpus(first_line(
        concat(system, "/devices/system/cpu/cpu", id, "/topology/thread_siblings_list")));
    const auto node = nodes.find(id);
    allowed.cpus.push_back(
        {id, node == nodes.end() ? 0 : node->second, siblings.empty() ? id : siblings.front()});
  }
  const int quota = quota_of_group(system);
  if (quota < static_cast<int>(allowed.cpus.size())) allowed.quota = quota;
  return allowed;
}

std::vector<int> cpus_of_share(const AllowedCpus& allowed, const Share& share, int threads) {
  const auto total = static_cast<std::int64_t>(allowed.cpus.size());
  if (!allowed.exclusive() || static_cast<std::int64_t>(threads) * share.count > total) return {};
  std::vector<Cpu> order = allowed.cpus;
  std::sort(order.begin(), order.end(), [](const Cpu& a, const Cpu& b) {
    return std::array{a.node, a.core, a.id} < std::array{b.node, b.core, b.id};
  });
  std::vector<int> cpus;
  for (std::int64_t i = share.index * total / share.count;
       i < (share.index + 1) * total / share.count; ++i)
    cpus.push_back(order[static_cast<std::size_t>(i)].id);
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

Share find_share(Communicator& world, const AllowedCpus& allowed) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::string mine = host.data();
  for (const Cpu& cpu : allowed.cpus) mine += concat(" ", cpu.id);
  Share share{0, 0};
  const std::vector<std::string> all = world.exchange(mine);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] != mine) continue;
    if (rank < world.rank()) ++share.index;
    ++share.count;
  }
  return share;
}

bool bind_this_thread(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

std::string format_cpus(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t begin = 0; begin < cpus.size();) {
    std::size_t end = begin + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += concat(text.empty() ? "" : ",", cpus[begin]);
    if (end > begin + 1) text += concat("-", cpus[end - 1]);
    begin = end;
  }
  return text;
}

std::vector<int> parse_cpus(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream range(part);
    int first = 0;
    int last = 0;
    if (!(range >> first) || first < 0) return {};
    last = first;
    if (range.peek() == '-' && !(range.ignore() >> last)) return {};
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace zero3d::tools
