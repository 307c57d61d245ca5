// The device contract on every way a CPU device can run.
#include <gtest/gtest.h>

#include "zero3d/tests/contract/device_contract.h"

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

}  // namespace
}  // namespace zero3d::contract
