// The communicator contract on threads, with and without decorators, and what is special to them:
// root causes, time limits, dropped operations.
#include "zero3d/parallel/comm/thread_communicator.h"

#include <gtest/gtest.h>

#include <latch>
#include <stdexcept>

#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/tests/contract/communicator_contract.h"
#include "zero3d/tests/contract/communicator_failure.h"
#include "zero3d/tests/contract/communicator_order.h"

namespace zero3d {
namespace {

using contract::CommSubject;
using contract::CommunicatorContract;
using contract::Data;

ThreadCommOptions options(int timeout_ms) {
  ThreadCommOptions result;
  result.timeout = std::chrono::milliseconds(timeout_ms);
  return result;
}

CommSubject plain(int size) {
  return {concat("thread", size), size, true,
          [size](const auto& body) { run_ranks(size, body, options(60000)); }};
}

CommSubject decorated(int size) {
  return {concat("decorated", size), size, true, [size](const auto& body) {
            run_ranks(
                size,
                [&](Communicator& world) {
                  CommCounter counter;
                  const auto counting = make_counting(world.split(0, world.rank()), counter);
                  body(*counting);
                },
                options(60000));
          }};
}

INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorContract,
                         testing::Values(plain(1), plain(2), plain(3), plain(4), decorated(1),
                                         decorated(2), decorated(3)),
                         [](const auto& subject) { return subject.param.name; });

TEST(SelfCommunicator, IsAGroupOfOne) {
  const auto self = make_self_communicator();
  EXPECT_EQ(self->size(), 1);
  EXPECT_EQ(self->rank(), 0);
  EXPECT_EQ(self->exchange("alone"), std::vector<std::string>{"alone"});
}

TEST(RunRanks, RethrowsTheRootCauseNotItsEchoes) {
  for (int failing = 0; failing < 3; ++failing) {
    try {
      run_ranks(3, [&](Communicator& comm) {
        if (comm.rank() == failing) throw std::runtime_error("tensor of rank is missing");
        comm.exchange("waiting");
      });
      FAIL() << "nothing was thrown";
    } catch (const CommError& error) {
      FAIL() << "an echo: " << error.what();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "tensor of rank is missing");
    }
  }
}

TEST(RunRanks, AFailedStreamEndsThePeersOfWhatItDropped) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_ranks(2, [&](Communicator& comm) {
      const auto device = make_cpu_device({});
      const auto stream = device->create_stream("compute");
      if (comm.rank() == 1)
        stream->launch("bad kernel", std::initializer_list<Access>{},
                       [] { throw std::runtime_error("token outside the table"); });
      comm.barrier(*stream);
      // Rank 1's host waits for rank 0's, which waits for its stream, which waits for rank 1's.
      if (comm.rank() == 0) stream->synchronize();
      comm.exchange("x");
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "token outside the table");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(RunRanks, ARankThatEndsEarlyEndsThoseWhoWaitForIt) {
  const auto expect_end = [](const std::function<void(Communicator&, Stream&, const View&)>& wait) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      run_ranks(3, [&](Communicator& world) {
        const auto device = make_cpu_device({});
        const auto stream = device->create_stream("comm");
        Data data(*device, DType::f32, 3);
        const auto group = world.split(0, 0);
        group->barrier(*stream);
        stream->synchronize();
        if (world.rank() == 1) return;
        wait(*group, *stream, data.view());
        stream->synchronize();
      });
      ADD_FAILURE() << "an operation without rank 1 went through";
    } catch (const CommError& error) {
      EXPECT_EQ(error.rank(), 1);
      EXPECT_NE(std::string(error.what()).find("it ended while rank"), std::string::npos)
          << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  };
  expect_end([](Communicator& c, Stream&, const View&) { c.exchange("x"); });
  expect_end([](Communicator& c, Stream&, const View&) { c.split(0, 0); });
  expect_end([](Communicator& c, Stream& s, const View&) { c.barrier(s); });
  expect_end([](Communicator& c, Stream& s, const View& v) { c.recv(s, v, 1); });
}

TEST(ThreadCommunicator, ATimeoutNamesWhoIsMissing) {
  for (const bool on_stream : {false, true}) {
    auto ranks = make_thread_communicators(4, options(1000));
    std::vector<std::thread> threads;
    std::latch all_here(3);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == 2) continue;
      threads.emplace_back([&, rank] {
        Communicator& comm = *ranks[static_cast<std::size_t>(rank)];
        const auto device = make_cpu_device({});
        const auto stream = device->create_stream("comm");
        all_here.arrive_and_wait();
        try {
          if (on_stream) {
            comm.barrier(*stream);
            stream->synchronize();
          } else {
            comm.exchange("x");
          }
          ADD_FAILURE() << "a barrier went through without rank 2";
        } catch (const CommError& error) {
          const std::string text = error.what();
          EXPECT_NE(text.find("for rank 2"), std::string::npos) << text;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(ThreadCommunicator, AMissingMessageTimesOut) {
  auto ranks = make_thread_communicators(2, options(50));
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("pp");
  Data data(*device, DType::f32, 3);
  ranks[1]->recv(*stream, data.view(), 0);
  try {
    stream->synchronize();
    FAIL() << "received nothing";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("message from rank 0"), std::string::npos);
  }
}

TEST(ThreadCommunicator, TasksOutliveTheirCommunicator) {
  run_ranks(2, [](Communicator& world) {
    const auto device = make_cpu_device({});
    Data data(*device, DType::f32, 9);
    data.fill([](std::int64_t i) { return static_cast<float>(i); });
    const auto stream = device->create_stream("comm");
    {
      const auto group = world.split(0, 0);
      for (int i = 0; i < 50; ++i) group->all_reduce(*stream, data.view(), {1.0f, 0.5f, {}});
    }
    stream->synchronize();
    EXPECT_EQ(data.bits(8), contract::bits_of(DType::f32, 8.0f));
  });
}

TEST(ThreadCommunicator, ManyGroupsAndStreamsUnderJitter) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    run_ranks(4, [seed](Communicator& world) {
      CpuDeviceOptions device_options;
      device_options.jitter_seed = seed * 10 + static_cast<std::uint64_t>(world.rank());
      const auto device = make_cpu_device(device_options);
      const auto dp = world.split(world.rank() % 2, world.rank());
      const auto tp = world.split(world.rank() / 2, world.rank());
      const auto gather = device->create_stream("gather"), reduce = device->create_stream("reduce");
      Data a(*device, DType::f32, 5003), b(*device, DType::f32, 5003);
      a.fill([&](std::int64_t i) { return contract::value_of(dp->rank(), i); });
      b.fill([&](std::int64_t i) { return contract::value_of(tp->rank(), i); });
      for (int i = 0; i < 10; ++i) {
        dp->all_reduce(*gather, a.view(), {1.0f, 0.5f, {}});
        tp->all_reduce(*reduce, b.view(), {1.0f, 0.5f, {}});
      }
      gather->synchronize();
      reduce->synchronize();
      for (const Data* data : {&a, &b})
        for (std::int64_t i = 0; i < 5003; i += 101)
          ASSERT_EQ(data->bits(i),
                    contract::reduced_bits(2, i, DType::f32, DType::f32, {1.0f, 0.5f, {}}));
    });
}

}  // namespace
}  // namespace zero3d
