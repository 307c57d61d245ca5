// The communicator contract on NCCL over ranks that are threads with a GPU each, and what is
// special to it.
#include "zero3d/parallel/comm/nccl_communicator.h"

#include <gtest/gtest.h>

#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/contract/communicator_contract.h"
#include "zero3d/tests/contract/communicator_failure.h"
#include "zero3d/tests/contract/communicator_order.h"

namespace zero3d::contract {
namespace {

/// Passes on what it does not own.
void run_nccl(int size, const std::function<void(Communicator&)>& body, bool one_gpu = false) {
  ThreadCommOptions options;
  options.timeout = std::chrono::seconds(60);
  run_ranks(
      size,
      [&](Communicator& world) {
        const int device = one_gpu ? 0 : cuda_device_of(world.rank());
        const auto comm = make_nccl(world.split(0, world.rank()), device);
        body(*comm);
      },
      options);
}

std::unique_ptr<Device> make_device(int rank) {
  CudaDeviceOptions options;
  options.rank = rank;
  options.device = cuda_device_of(rank);
  return make_cuda_device(options);
}

CommSubject subject(int size) {
  return {concat("Nccl", size), size, false, [size](const auto& body) { run_nccl(size, body); }, 10,
          make_device};
}

/// As many ranks as there are GPUs, up to 4.
std::vector<CommSubject> subjects() {
  std::vector<CommSubject> all;
  for (const int size : {1, 2, 3, 4})
    if (size <= std::max(1, cuda_device_count())) all.push_back(subject(size));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorContract, testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name; });

TEST(NcclCommunicator, RefusesTwoRanksOnOneGpuByName) {
  try {
    run_nccl(
        2, [](Communicator&) { FAIL() << "two ranks on one GPU"; }, true);
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"ranks 0 and 1", "one GPU between them", "one rank a GPU"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(NcclCommunicator, LeavesStreamsOfTheCpuToTheInnerOne) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  run_nccl(2, [](Communicator& comm) {
    const auto device = make_cpu_device({.rank = comm.rank()});
    const auto stream = device->create_stream("comm");
    Data data(*device, DType::f32, 100);
    data.fill([&](std::int64_t i) { return static_cast<float>(i + comm.rank()); });
    comm.all_reduce(*stream, data.view(), {});
    stream->synchronize();
    EXPECT_EQ(data.bits(7), bits_of(DType::f32, 15.0f));
  });
}

TEST(NcclCommunicator, APeerThatDoesNotComeEndsTheWaitAtTheLimit) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  try {
    run_nccl(2, [](Communicator& comm) {
      comm.set_timeout(std::chrono::milliseconds(1500));
      const auto device = make_device(comm.rank());
      const auto stream = device->create_stream("comm");
      const Data data(*device, DType::f32, 100);
      if (comm.rank() == 0) comm.broadcast(*stream, data.view(), 0);
      stream->synchronize();
      std::this_thread::sleep_for(std::chrono::seconds(3));
      comm.check();
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"broadcast", "within 1500 ms", "--comm-timeout"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace zero3d::contract
