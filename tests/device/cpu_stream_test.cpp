// What CPU streams add to the device contract: threads, traces, jitter, poison.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "zero3d/core/log.h"
#include "zero3d/core/trace.h"
#include "zero3d/device/device.h"

namespace zero3d {
namespace {

TEST(CpuStream, RunsOnANamedThreadThatLogsItsRank) {
  CpuDeviceOptions options;
  options.rank = 5;
  const auto device = make_cpu_device(options);
  const auto stream = device->create_stream("a name longer than the kernel keeps");
  std::string name(16, '\0');
  ::testing::internal::CaptureStderr();
  stream->launch("look", {}, [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    log_info("hello");
  });
  stream->synchronize();
  const std::string logged = ::testing::internal::GetCapturedStderr();
  EXPECT_STREQ(name.c_str(), "a name longer t");
  EXPECT_NE(logged.find("[rank 5] hello"), std::string::npos) << logged;
}

TEST(CpuStream, AnErrorNobodyWaitedForIsLogged) {
  for (const bool in_line : {false, true}) {
    std::string logged;
    set_log_sink([&](LogLevel, std::string_view line) { logged += line; });
    CpuDeviceOptions options;
    options.inline_streams = in_line;
    const auto device = make_cpu_device(options);
    {
      const auto stream = device->create_stream("lost");
      stream->launch("fails", {}, [] { throw_invalid("the cause"); });
    }
    EXPECT_NE(logged.find("'lost' ended with an error that nobody waited for: the cause"),
              std::string::npos)
        << logged;
    logged.clear();
    {
      const auto stream = device->create_stream("seen");
      stream->launch("fails", {}, [] { throw_invalid("the cause"); });
      EXPECT_THROW(stream->synchronize(), Error);
    }
    EXPECT_EQ(logged, "");
    set_log_sink({});
  }
}

TEST(CpuStream, InlineTasksRunAtLaunchOnTheCallingThread) {
  CpuDeviceOptions options;
  options.inline_streams = true;
  const auto device = make_cpu_device(options);
  const auto stream = device->create_stream("inline");
  std::thread::id where;
  stream->launch("look", {}, [&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(CpuStream, TracesTasksOnlyWhileTheTracerRecords) {
  CpuDeviceOptions options;
  options.rank = 2;
  const auto device = make_cpu_device(options);
  const auto stream = device->create_stream("gather");
  Tensor tensor(device->memory(), kNoStream, DType::f32, Shape{100}, Category::other);
  stream->launch("untraced", {}, [] {});
  stream->synchronize();
  Tracer::enable();
  stream->launch("all gather 3", {writes(tensor)}, [] {});
  stream->launch("second", {}, [] {});
  stream->synchronize();
  const std::vector<Span> spans = Tracer::spans();
  Tracer::disable();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "all gather 3");
  EXPECT_EQ(spans[0].stream, "gather");
  EXPECT_EQ(spans[0].rank, 2);
  EXPECT_EQ(spans[0].bytes, 400);
  EXPECT_LE(spans[0].begin_ns, spans[0].end_ns);
  EXPECT_LE(spans[0].end_ns, spans[1].begin_ns);
}

TEST(CpuStream, ReleasedMemoryReadsAsNaNUnlessStillInUse) {
  CpuDeviceOptions options;
  options.check_hazards = options.poison_on_free = true;
  const auto device = make_cpu_device(options);
  const auto stream = device->create_stream("compute");
  const auto all = [](const std::byte* data, std::size_t bytes, int value) {
    return std::all_of(data, data + bytes, [&](std::byte b) { return b == std::byte(value); });
  };
  Tensor tensor(device->memory(), *stream, DType::f32, Shape{1000}, Category::other);
  EXPECT_TRUE(all(tensor.view().data(), 4000, 0xFF)) << "memory fresh from the system";

  device->fill_zero(*stream, tensor);
  stream->synchronize();
  const std::byte* bytes = tensor.view().data();
  tensor.reset();
  EXPECT_TRUE(all(bytes, 4000, 0xFF)) << "no stream uses it any more";

  tensor = Tensor(device->memory(), *stream, DType::f32, Shape{1000}, Category::other);
  ASSERT_EQ(tensor.view().data(), bytes);
  device->fill_zero(*stream, tensor);
  std::promise<void> gate;
  std::shared_future<void> opened = gate.get_future().share();
  bool intact = false;
  stream->launch("last use", {reads(tensor)}, [&, opened] {
    opened.wait();
    intact = all(bytes, 4000, 0);
  });
  tensor.reset();  // in stream order, with the use still to come
  tensor = Tensor(device->memory(), *stream, DType::f32, Shape{1000}, Category::other);
  gate.set_value();
  stream->synchronize();
  EXPECT_TRUE(intact);
}

TEST(CpuStream, RefusesADeviceWithoutThreadsOrWithANegativeBudget) {
  CpuDeviceOptions options;
  options.threads = 0;
  EXPECT_THROW(make_cpu_device(options), Error);
  options.threads = 1;
  options.budget_bytes = -5;
  EXPECT_THROW(make_cpu_device(options), Error);
}

TEST(CpuStream, ATaskMayNotSynchroniseItsOwnStream) {
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("compute");
  stream->launch("self", {}, [&] { stream->synchronize(); });
  EXPECT_THROW(stream->synchronize(), Error);
}

}  // namespace
}  // namespace zero3d
