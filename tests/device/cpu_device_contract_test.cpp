// The device contract on every way a CPU device can run.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "zero3d/tests/contract/device_contract.h"
#include "zero3d/tests/contract/memory_contract.h"

namespace zero3d::contract {
namespace {

DeviceSubject subject(std::string name, CpuDeviceOptions options) {
  const auto make = [options](int rank, std::int64_t budget) {
    CpuDeviceOptions own = options;
    own.rank = rank;
    own.budget_bytes = budget;
    return make_cpu_device(own);
  };
  return {std::move(name), make, !options.inline_streams};
}

std::vector<DeviceSubject> subjects() {
  CpuDeviceOptions plain;
  plain.check_hazards = plain.poison_on_free = false;
  CpuDeviceOptions checked = plain;
  checked.check_hazards = checked.poison_on_free = true;
  CpuDeviceOptions wide = checked;
  wide.threads = 4;
  CpuDeviceOptions in_line = checked;
  in_line.inline_streams = true;
  CpuDeviceOptions jitter = checked;
  jitter.jitter_seed = 42;
  return {subject("Plain", plain), subject("Checked", checked), subject("FourThreads", wide),
          subject("Inline", in_line), subject("Jitter", jitter)};
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceContract, ::testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name; });
INSTANTIATE_TEST_SUITE_P(Cpu, MemoryContract, ::testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name; });

TEST(CpuDevice, PinnedAndPageableMemoryShareABudget) {
  CpuDeviceOptions options;
  options.rank = 3;
  options.host_budget_bytes = 1000;
  const auto device = make_cpu_device(options);
  Buffer pinned(device->memory(Tier::pinned), kNoStream, 700, Category::batches);
  EXPECT_EQ(device->memory(Tier::pageable).available(), 300);
  const Buffer pageable(device->memory(Tier::pageable), kNoStream, 200, Category::other);
  const Buffer other(device->memory(), kNoStream, 5000, Category::other);
  try {
    const Buffer more(device->memory(Tier::pageable), kNoStream, 101, Category::other);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    for (const char* part : {"pageable host memory of rank 3", "101 bytes", "900 bytes",
                             "batches 700 B", "other 200 B", "--host-memory"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  pinned.reset();
  const Buffer more(device->memory(Tier::pageable), kNoStream, 800, Category::other);
}

std::size_t address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// Streams' stacks, other ranks' devices and everybody's malloc need address space too.
TEST(CpuDevice, LeavesALimitedAddressSpaceToOthers) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limit{address_space() + 1024 * kMiB, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  std::string refusal;
  void* other = MAP_FAILED;
  {
    const auto first = make_cpu_device({}), second = make_cpu_device({});
    for (Device* device : {first.get(), second.get()})
      for (const Tier tier : {Tier::device, Tier::pinned})
        Buffer(device->memory(tier), kNoStream, kMiB, Category::other);
    other = mmap(nullptr, 512 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (other != MAP_FAILED) munmap(other, 512 * kMiB);
    try {
      Buffer(first->memory(), kNoStream, 2048 * kMiB, Category::other);
    } catch (const OutOfMemory& error) {
      refusal = error.what();
    }
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_NE(other, MAP_FAILED);
  EXPECT_NE(refusal.find("ulimit -v"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace zero3d::contract
