// What a machine has left, by /proc and the control groups, and what is refused for it.
#include "machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "zero3d/core/error.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::tools {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class Root {
 public:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.file("root" + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  MachineMemory read() const { return read_machine_memory(folder_.file("root")); }

 private:
  test::TemporaryFolder folder_;
};

TEST(MachineMemory, IsWhatTheKernelSaysIsAvailable) {
  Root root;
  EXPECT_LT(root.read().available, 0);
  root.write("/proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n");
  EXPECT_EQ(root.read().available, 2 * kMiB);
  EXPECT_EQ(root.read().limited_by, "MemAvailable");
}

TEST(MachineMemory, IsNoMoreThanTheGroupsLeave) {
  Root root;
  root.write("/proc/meminfo", "MemAvailable: 1048576 kB\n");
  root.write("/proc/self/cgroup", "0::/slice/job\n");
  root.write("/sys/fs/cgroup/slice/job/memory.max", "max\n");
  root.write("/sys/fs/cgroup/slice/job/memory.current", "1000\n");
  EXPECT_EQ(root.read().available, 1024 * kMiB);
  // A group around it has a limit; its cache of files can be dropped.
  root.write("/sys/fs/cgroup/slice/memory.max", std::to_string(100 * kMiB));
  root.write("/sys/fs/cgroup/slice/memory.current", std::to_string(90 * kMiB));
  EXPECT_EQ(root.read().available, 10 * kMiB);
  root.write("/sys/fs/cgroup/slice/memory.stat", "anon 5\ninactive_file 20971520\n");
  EXPECT_EQ(root.read().available, 30 * kMiB);
  EXPECT_EQ(root.read().limited_by, "the limit of its control group");
  root.write("/sys/fs/cgroup/slice/memory.current", std::to_string(900 * kMiB));
  EXPECT_EQ(root.read().available, 0);
  root.write("/sys/fs/cgroup/slice/memory.max", "9223372036854771712");
  EXPECT_EQ(root.read().available, 1024 * kMiB);
}

TEST(MachineMemory, ReadsGroupsOfTheFirstVersion) {
  Root root;
  root.write("/proc/meminfo", "MemAvailable: 1048576 kB\n");
  root.write("/proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/docker/abc\n0::/\n");
  // In a container the path of the host may be the root of what is mounted.
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(64 * kMiB));
  root.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(50 * kMiB));
  root.write("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1048576\n");
  EXPECT_EQ(root.read().available, 15 * kMiB);
}

TEST(MachineMemory, WhatIsNoSuchFileLimitsNothing) {
  Root root;
  root.write("/proc/meminfo", "MemAvailable: many kB\n");
  root.write("/proc/self/cgroup", "nonsense\n0::relative\n::\n");
  EXPECT_LT(root.read().available, 0);
}

TEST(MachineMemory, IsSharedByTheRanksOfAMachine) {
  MemoryEstimate plan;
  plan[Tier::device][Category::activations] = 100 * kMiB - kRankOverhead;
  plan.habits.micro_batch = 2;
  EXPECT_NO_THROW(require_machine_holds(plan, 4, {400 * kMiB, "MemAvailable"}));
  EXPECT_NO_THROW(require_machine_holds(plan, 4, {-1, ""}));
  try {
    require_machine_holds(plan, 4, {400 * kMiB - 4, "MemAvailable"});
    FAIL() << "took what does not fit";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.bytes(), 100 * kMiB);
    const std::string message = error.what();
    for (const char* part :
         {"100.00 MiB for each rank", "activations 92.00 MiB", "for each of its 4 ranks",
          "MemAvailable", "train_micro_batch_size_per_gpu"})
      EXPECT_NE(message.find(part), std::string::npos) << part << " not in " << message;
  }
  // Host memory is the machine's as much as the CPU device's.
  plan[Tier::pinned][Category::optimizer_states] = 60 * kMiB;
  plan[Tier::pageable][Category::parameters] = 40 * kMiB;
  EXPECT_NO_THROW(require_machine_holds(plan, 4, {800 * kMiB, "MemAvailable"}));
  EXPECT_THROW(require_machine_holds(plan, 4, {800 * kMiB - 4, "MemAvailable"}), OutOfMemory);
  run_ranks(3, [](Communicator& world) { EXPECT_EQ(ranks_of_this_machine(world), 3); });
}

TEST(MachineMemory, AGpusIsApart) {
  MemoryEstimate plan;
  plan[Tier::device][Category::parameters] = 100 * kMiB - kGpuOverhead;
  plan[Tier::pinned][Category::optimizer_states] = 50 * kMiB - kRankOverhead;
  plan.habits.micro_batch = 2;
  EXPECT_NO_THROW(require_machine_holds(plan, 2, {100 * kMiB, "MemAvailable"}, kHostTiers));
  EXPECT_THROW(require_machine_holds(plan, 2, {100 * kMiB - 2, "MemAvailable"}, kHostTiers),
               OutOfMemory);
  EXPECT_NO_THROW(require_gpu_holds(plan, 2, 200 * kMiB));
  try {
    require_gpu_holds(plan, 2, 200 * kMiB - 2);
    FAIL() << "took what does not fit";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.bytes(), 100 * kMiB);
    const std::string message = error.what();
    for (const char* part : {"100.00 MiB of device memory for each rank", "64.00 MiB that kernels",
                             "for each of its 2 ranks", "train_micro_batch_size_per_gpu"})
      EXPECT_NE(message.find(part), std::string::npos) << part << " not in " << message;
  }
}

}  // namespace
}  // namespace zero3d::tools
