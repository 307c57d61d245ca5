// Shares of CPUs: disjoint, all used, neighbouring, whole cores, and none where binding would
// hinder.
#include "cpu_binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::tools {
namespace {

/// `nodes` of `cores` with `threads` each, numbered as Linux does on two sockets: first all cores'
/// first threads.
AllowedCpus machine(int nodes, int cores, int threads) {
  AllowedCpus allowed;
  for (int thread = 0; thread < threads; ++thread) {
    for (int core = 0; core < nodes * cores; ++core)
      allowed.cpus.push_back({thread * nodes * cores + core, core / cores, core});
  }
  return allowed;
}

TEST(CpuShares, AreDisjointAndUseEveryCpu) {
  for (const AllowedCpus& allowed :
       {machine(1, 1, 1), machine(1, 2, 1), machine(1, 7, 1), machine(2, 8, 2), machine(4, 5, 2)}) {
    const int total = static_cast<int>(allowed.cpus.size());
    for (int count = 1; count <= total; ++count) {
      std::set<int> seen;
      for (int index = 0; index < count; ++index) {
        const std::vector<int> cpus = cpus_of_share(allowed, {index, count}, total / count);
        EXPECT_GE(static_cast<int>(cpus.size()), total / count);
        for (const int cpu : cpus) EXPECT_TRUE(seen.insert(cpu).second) << cpu;
      }
      EXPECT_EQ(static_cast<int>(seen.size()), total);
    }
  }
}

TEST(CpuShares, KeepToANodeAndToWholeCores) {
  const AllowedCpus allowed = machine(2, 8, 2);
  std::map<int, Cpu> by_id;
  for (const Cpu& cpu : allowed.cpus) by_id[cpu.id] = cpu;
  for (const int count : {2, 4, 8, 16}) {
    for (int index = 0; index < count; ++index) {
      std::set<int> nodes;
      std::map<int, int> cores;
      for (const int cpu : cpus_of_share(allowed, {index, count}, 1)) {
        nodes.insert(by_id[cpu].node);
        ++cores[by_id[cpu].core];
      }
      EXPECT_EQ(nodes.size(), 1u);
      for (const auto& [core, threads] : cores) EXPECT_EQ(threads, 2) << core;
    }
  }
}

TEST(CpuShares, AreNoneWhereThreadsOutnumberCpusOrAQuotaRules) {
  EXPECT_TRUE(cpus_of_share(machine(1, 4, 1), {0, 2}, 3).empty());
  EXPECT_TRUE(cpus_of_share(machine(1, 4, 1), {4, 5}, 1).empty());
  AllowedCpus limited = machine(1, 8, 1);
  limited.quota = 2;
  EXPECT_EQ(limited.count(), 2);
  EXPECT_TRUE(cpus_of_share(limited, {0, 2}, 1).empty());
}

TEST(AllowedCpus, ComeFromTheMaskTheTopologyAndTheQuota) {
  const test::TemporaryFolder folder;
  const std::string system = folder.file("sys");
  const auto write = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path file = system + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  };
  std::vector<int> mask;
  for (const Cpu& cpu : read_allowed_cpus().cpus) mask.push_back(cpu.id);
  ASSERT_FALSE(mask.empty());
  write("/devices/system/node/node0/cpulist", "9999");
  write("/devices/system/node/node3/cpulist", format_cpus(mask));
  write("/devices/system/cpu/cpu" + std::to_string(mask.back()) + "/topology/thread_siblings_list",
        std::to_string(mask.front()) + "," + std::to_string(mask.back()));
  write("/fs/cgroup/cpu.max", "max 100000");
  const AllowedCpus allowed = read_allowed_cpus(system);
  EXPECT_TRUE(allowed.exclusive());
  EXPECT_EQ(allowed.count(), static_cast<int>(mask.size()));
  for (const Cpu& cpu : allowed.cpus) EXPECT_EQ(cpu.node, 3);
  EXPECT_EQ(allowed.cpus.back().core, mask.front());
  write("/fs/cgroup/cpu.max", "50000 100000");
  EXPECT_EQ(read_allowed_cpus(system).count(), 1);
  EXPECT_EQ(read_allowed_cpus(system).exclusive(), mask.size() == 1);
}

TEST(AllowedCpus, AreThoseOfAnExistingMask) {
  const AllowedCpus all = read_allowed_cpus();
  std::thread([&] {
    ASSERT_TRUE(bind_this_thread({all.cpus.back().id}));
    const AllowedCpus mine = read_allowed_cpus();
    ASSERT_EQ(mine.cpus.size(), 1u);
    EXPECT_EQ(mine.cpus[0].id, all.cpus.back().id);
    EXPECT_EQ(cpus_of_share(mine, {0, 1}, 1), std::vector<int>{all.cpus.back().id});
  }).join();
}

TEST(CpuShares, AreDividedAmongRanksThatMayUseTheSameCpus) {
  const AllowedCpus all = machine(1, 4, 1);
  run_ranks(4, [&](Communicator& world) {
    AllowedCpus mine = all;
    if (world.rank() == 3) mine.cpus.pop_back();  // bound otherwise by its launcher
    const Share share = find_share(world, mine);
    EXPECT_EQ(share.count, world.rank() == 3 ? 1 : 3);
    EXPECT_EQ(share.index, world.rank() == 3 ? 0 : world.rank());
  });
}

TEST(CpuLists, ReadWhatTheyWrite) {
  for (const std::vector<int>& cpus :
       {std::vector<int>{}, {0}, {0, 1}, {3, 5, 6, 7, 9}, {0, 2, 4, 100, 101}}) {
    EXPECT_EQ(parse_cpus(format_cpus(cpus)), cpus);
  }
  EXPECT_EQ(format_cpus({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_TRUE(parse_cpus("").empty());
  EXPECT_TRUE(parse_cpus("many").empty());
}

}  // namespace
}  // namespace zero3d::tools
