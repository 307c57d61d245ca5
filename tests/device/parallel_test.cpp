#include "zero3d/device/parallel.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <vector>

#include "zero3d/device/device.h"

namespace zero3d {
namespace {

using Chunks = std::set<std::pair<std::int64_t, std::int64_t>>;

Chunks chunks_of(int threads, std::int64_t count, std::int64_t grain) {
  CpuDeviceOptions options;
  options.threads = threads;
  const auto device = make_cpu_device(options);
  const auto stream = device->create_stream("loops");
  Chunks chunks;
  stream->launch("loop", {}, [&] {
    std::mutex mutex;
    parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
      std::lock_guard lock(mutex);
      EXPECT_TRUE(chunks.emplace(begin, end).second) << begin;
    });
  });
  stream->synchronize();
  return chunks;
}

cpu_set_t cpus_of_this_thread() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  EXPECT_EQ(sched_getaffinity(0, sizeof cpus, &cpus), 0);
  return cpus;
}

/// Two devices made by threads with other CPUs: helpers that go from one to the other change
/// theirs.
TEST(ParallelFor, ThreadsKeepToTheCpusOfTheThreadThatMadeTheDevice) {
  const cpu_set_t all = cpus_of_this_thread();
  for (int round = 0; round < 20; ++round) {
    for (int cpu = 0, used = 0; cpu < CPU_SETSIZE && used < 2; ++cpu) {
      if (!CPU_ISSET(cpu, &all)) continue;
      ++used;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
      CpuDeviceOptions options;
      options.threads = 3;
      const auto device = make_cpu_device(options);
      const auto stream = device->create_stream("loops");
      std::atomic<int> elsewhere{0};
      stream->launch("loop", {}, [&] {
        parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
          const cpu_set_t mine = cpus_of_this_thread();
          if (!CPU_EQUAL(&mine, &one)) ++elsewhere;
        });
      });
      stream->synchronize();
      EXPECT_EQ(elsewhere, 0);
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

TEST(ParallelFor, ChunksDependOnCountAndGrainAlone) {
  for (const std::int64_t count : {0, 1, 2, 7, 63, 64, 65, 1009}) {
    for (const std::int64_t grain : {1, 2, 3, 64, 1000, 2000}) {
      Chunks expected;
      for (std::int64_t begin = 0; begin < count; begin += grain)
        expected.emplace(begin, std::min(begin + grain, count));
      for (const int threads : {1, 2, 3, 8})
        EXPECT_EQ(chunks_of(threads, count, grain), expected)
            << count << " by " << grain << " on " << threads;
    }
  }
}

TEST(ParallelFor, IsSerialOutsideOfAStream) {
  EXPECT_EQ(arena_threads(), 1);
  std::vector<std::int64_t> begins;
  parallel_for(10, 3, [&](std::int64_t begin, std::int64_t) { begins.push_back(begin); });
  EXPECT_EQ(begins, (std::vector<std::int64_t>{0, 3, 6, 9}));
}

TEST(ParallelFor, RefusesAGrainBelowOne) {
  EXPECT_THROW(parallel_for(1, 0, [](std::int64_t, std::int64_t) {}), Error);
}

TEST(ParallelFor, RethrowsFromAChunkAndSeesItsArena) {
  CpuDeviceOptions options;
  options.threads = 4;
  const auto device = make_cpu_device(options);
  const auto stream = device->create_stream("loops");
  int threads = 0;
  std::atomic<int> inside{0};
  stream->launch("size", {}, [&] {
    threads = arena_threads();
    parallel_for(8, 1, [&](std::int64_t, std::int64_t) { inside += arena_threads(); });
  });
  stream->synchronize();
  EXPECT_EQ(threads, 4);
  EXPECT_EQ(inside, 8);  // a loop inside a chunk is serial
  stream->launch("throw", {}, [] {
    parallel_for(100, 1, [](std::int64_t begin, std::int64_t) {
      if (begin == 57) throw std::runtime_error("chunk 57");
    });
  });
  try {
    stream->synchronize();
    FAIL() << "no error surfaced";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "chunk 57");
  }
}

}  // namespace
}  // namespace zero3d
