// The device contract on every way a CPU device can run.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace zero3d::contract
