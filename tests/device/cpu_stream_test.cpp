#include <gtest/gtest.h>

#include <vector>

#include "zero3d/device/device.h"

namespace zero3d {
namespace {

TEST(CpuStream, RunsTasksInOrder) {
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("compute");
  std::vector<int> seen;
  for (int i = 0; i < 1000; ++i) stream->launch("push", {}, [&seen, i] { seen.push_back(i); });
  stream->synchronize();
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(CpuStream, EventOrdersStreamsAndCarriesErrors) {
  const auto device = make_cpu_device({});
  const auto first = device->create_stream("first");
  const auto second = device->create_stream("second");
  Event event;
  EXPECT_THROW(second->wait(event), Error);
  EXPECT_THROW(event.wait(), Error);
  int value = 0;
  first->launch("set", {}, [&] { value = 1; });
  first->record(event);
  second->wait(event);
  second->launch("double", {}, [&] { value *= 2; });
  second->synchronize();
  EXPECT_EQ(value, 2);
  first->launch("fail", {}, [] { throw_invalid("boom"); });
  first->record(event);
  second->wait(event);
  second->launch("never", {}, [&] { value = 99; });
  EXPECT_THROW(second->synchronize(), Error);
  EXPECT_THROW(event.wait(), Error);
  EXPECT_EQ(value, 2);
}

}  // namespace
}  // namespace zero3d
