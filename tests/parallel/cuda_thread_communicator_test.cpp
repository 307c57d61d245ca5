// The communicator contract on ranks that are threads, with memory of GPUs: one for all, and one
// each.
#include <gtest/gtest.h>

#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/contract/communicator_contract.h"
#include "zero3d/tests/contract/communicator_failure.h"
#include "zero3d/tests/contract/communicator_order.h"

namespace zero3d::contract {
namespace {

CommSubject subject(const std::string& name, int size, bool several) {
  const auto run = [size](const std::function<void(Communicator&)>& body) {
    ThreadCommOptions options;
    options.timeout = std::chrono::seconds(60);
    run_ranks(size, body, options);
  };
  const auto make = [several](int rank) {
    CudaDeviceOptions options;
    options.rank = rank;
    options.device = several ? cuda_device_of(rank) : 0;
    return make_cuda_device(options);
  };
  return {concat(name, size), size, true, run, 20, make};
}

INSTANTIATE_TEST_SUITE_P(CudaThread, CommunicatorContract,
                         testing::Values(subject("OneGpu", 1, false), subject("OneGpu", 2, false),
                                         subject("OneGpu", 3, false), subject("AGpuEach", 2, true),
                                         subject("AGpuEach", 4, true)),
                         [](const auto& subject) { return subject.param.name; });

/// Whoever writes an input again comes after the peers that read it, and whoever reads an output
/// after the peers that wrote it: on the GPU alone, with no host in between.
TEST(CudaThreadCommunicator, StreamsMeetWithoutTheirHosts) {
  constexpr std::int64_t kPiece = 5000;
  run_ranks(3, [&](Communicator& comm) {
    CudaDeviceOptions options;
    options.rank = comm.rank();
    const auto device = make_cuda_device(options);
    const auto stream = device->create_stream("comm");
    Data full(*device, DType::f32, kPiece * 3), shard(*device, DType::f32, kPiece);
    full.fill([&](std::int64_t i) { return static_cast<float>(i % 7 + comm.rank()); });
    const ReduceSegment reduce{full.view(), shard.view()};
    const GatherSegment gather{shard.view(), full.view()};
    for (int round = 0; round < 10; ++round) {
      comm.reduce_scatter(*stream, {&reduce, 1}, {1.0f, 1.0f / 3, {}});
      comm.all_gather(*stream, {&gather, 1});
      device->fill_zero(*stream, shard.view());
      comm.all_reduce(*stream, shard.view(), {});
    }
    stream->synchronize();
    const auto found = full.all_bits();
    for (std::int64_t i = 0; i < full.numel(); ++i)
      ASSERT_EQ(found[static_cast<std::size_t>(i)],
                bits_of(DType::f32, static_cast<float>(i % 7 + 1)));
  });
}

}  // namespace
}  // namespace zero3d::contract
