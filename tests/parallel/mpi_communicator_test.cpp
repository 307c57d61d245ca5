// The communicator contract between processes; run by mpiexec, each process is one rank of every
// test. With an argument "--fail=R" rank R throws instead, which must end all processes.
#include "zero3d/parallel/comm/mpi_communicator.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "zero3d/core/log.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/contract/communicator_contract.h"
#include "zero3d/tests/contract/communicator_failure.h"
#include "zero3d/tests/contract/communicator_order.h"

namespace zero3d {
namespace {

using contract::CommSubject;
using contract::CommunicatorContract;
using contract::Data;

MpiCommOptions options(bool check, int timeout_ms = 60000) {
  MpiCommOptions result;
  result.check = check;
  result.timeout = std::chrono::milliseconds(timeout_ms);
  return result;
}

CommSubject subject(bool check) {
  return {check ? "checked" : "plain", mpi_launch().size, check,
          [check](const auto& body) { run_mpi_rank(body, options(check)); }, 8};
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorContract, testing::Values(subject(false), subject(true)),
                         [](const auto& subject) { return subject.param.name; });

TEST(MpiCommunicator, IsTheWorldOfTheLauncher) {
  const auto world = make_mpi_world();
  EXPECT_TRUE(built_with_mpi());
  EXPECT_EQ(world->rank(), mpi_launch().rank);
  EXPECT_EQ(world->size(), mpi_launch().size);
  world->exchange("");
}

/// The bits that `segments` reductions of long pieces leave, whatever carries them.
std::vector<std::uint32_t> long_reduction(Communicator& comm) {
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("comm");
  // Above the chunk of 2^18 elements, so that messages are cut and flights overlap.
  const std::int64_t piece = 700001;
  Data full(*device, DType::bf16, piece * comm.size()), shard(*device, DType::f32, piece);
  Data all(*device, DType::f32, piece);
  full.fill([&](std::int64_t i) { return contract::value_of(comm.rank(), i); });
  all.fill([&](std::int64_t i) { return contract::value_of(comm.rank(), i); });
  const ReduceSegment segment{full.view(), shard.view()};
  comm.reduce_scatter(*stream, {&segment, 1}, {0.5f, 1.0f / 3, DType::bf16});
  comm.all_reduce(*stream, all.view(), {});
  stream->synchronize();
  std::vector<std::uint32_t> bits = shard.all_bits();
  const auto more = all.all_bits();
  bits.insert(bits.end(), more.begin(), more.end());
  return bits;
}

TEST(MpiCommunicator, GivesTheBitsOfTheThreadCommunicator) {
  std::vector<std::uint32_t> own;
  int rank = 0;
  run_mpi_rank([&](Communicator& comm) {
    rank = comm.rank();
    own = long_reduction(comm);
    comm.exchange("done");
  });
  run_ranks(mpi_launch().size, [&](Communicator& comm) {
    const auto bits = long_reduction(comm);
    EXPECT_TRUE(comm.rank() != rank || bits == own);
  });
}

TEST(MpiCommunicator, ATimeoutNamesWhoIsMissing) {
  const int size = mpi_launch().size;
  if (size == 1) GTEST_SKIP() << "no peer";
  const auto world = make_mpi_world(options(false, 100));
  world->exchange("all here");
  if (world->rank() == size - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    EXPECT_THROW(world->exchange("too late"), CommAborted);
    return;
  }
  try {
    world->exchange("x");
    ADD_FAILURE() << "an exchange went through without the last rank";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find(concat("rank ", size - 1)), std::string::npos)
        << error.what();
  }
}

/// Pieces of a large message are read as MPI makes progress, in whatever call that is: also after a
/// failure has ended the operation, and its memory is gone.
TEST(MpiCommunicator, AFailureLeavesNoMessageReadingMemoryThatIsGone) {
  const int size = mpi_launch().size;
  if (size == 1) GTEST_SKIP() << "no peer";
  const auto meeting = make_mpi_world();
  for (int round = 0; round < 10; ++round) {
    MpiCommOptions quiet = options(false);
    quiet.log_failures = false;
    const auto world = make_mpi_world(quiet);
    {
      const auto device = make_cpu_device({});
      const auto stream = device->create_stream("comm");
      const std::int64_t piece = 1 << 19;
      Data shard(*device, DType::f32, piece), full(*device, DType::f32, size * piece);
      const GatherSegment segment{shard.view(), full.view()};
      meeting->exchange("together");
      EXPECT_THROW(
          {
            world->all_gather(*stream, {&segment, 1});
            if (world->rank() == size - 1) {
              std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
              world->fail(std::make_exception_ptr(std::runtime_error("disk on fire")));
            }
            stream->synchronize();
            for (;;) world->exchange("until it fails");
          },
          std::exception);
    }
    for (int i = 0; i < 20; ++i) meeting->exchange("MPI makes progress");
  }
}

TEST(MpiCommunicator, OfFailuresAtOnceAllKnowTheSame) {
  const auto meeting = make_mpi_world();
  for (int round = 0; round < 20; ++round) {
    MpiCommOptions quiet = options(false);
    quiet.log_failures = false;
    const auto world = make_mpi_world(quiet);
    meeting->exchange("together");
    if (world->rank() > 0 || world->size() == 1)
      world->fail(std::make_exception_ptr(std::runtime_error("disk on fire")));
    int failed = world->rank();
    try {
      for (;;) world->exchange("until it fails");
    } catch (const CommAborted& error) {
      failed = error.rank();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "disk on fire");
    }
    for (const std::string& theirs : meeting->exchange(std::to_string(failed)))
      EXPECT_EQ(theirs, std::to_string(failed)) << "round " << round;
  }
}

TEST(MpiLaunch, ReadsTheEnvironmentOfLaunchers) {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size == nullptr) GTEST_SKIP() << "not launched by OpenMPI";
  EXPECT_TRUE(launched_by_mpi());
  EXPECT_EQ(mpi_launch().size, std::atoi(size));
}

int fail_on(int rank) {
  try {
    const MpiSession session;
    run_mpi_rank([rank](Communicator& comm) {
      if (comm.rank() == rank) throw std::runtime_error("tensor h.0.attn is missing");
      comm.exchange("waiting");
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace zero3d

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kFail = "--fail=";
  if (argc > 1 && std::string_view(argv[1]).substr(0, kFail.size()) == kFail)
    return zero3d::fail_on(std::atoi(argv[1] + kFail.size()));
  const zero3d::MpiSession session;
  return RUN_ALL_TESTS();
}
