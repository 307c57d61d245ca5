// The device contract on a GPU, and what is special to it: order between its streams and those of
// the CPU, host streams, pageable memory, errors.
#include "zero3d/device/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_stream.h"
#include "zero3d/tests/contract/device_contract.h"
#include "zero3d/tests/contract/memory_contract.h"
#include "zero3d/tests/device/cuda/fill.h"

namespace zero3d::contract {
namespace {

DeviceSubject subject(std::string name, bool several, const CudaDeviceOptions& options) {
  const auto make = [options, several](int rank, std::int64_t budget) {
    CudaDeviceOptions own = options;
    own.rank = rank;
    own.device = several ? cuda_device_of(rank) : 0;
    own.budget_bytes = budget;
    return make_cuda_device(own);
  };
  return {std::move(name), make, true, test::fill};
}

std::vector<DeviceSubject> subjects() {
  CudaDeviceOptions plain;
  plain.check_hazards = false;
  CudaDeviceOptions checked = plain;
  checked.check_hazards = true;
  CudaDeviceOptions jitter = checked;
  jitter.jitter_seed = 42;
  return {subject("Plain", false, plain), subject("Checked", false, checked),
          subject("SeveralGpus", true, checked), subject("Jitter", false, jitter)};
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, ::testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name; });
INSTANTIATE_TEST_SUITE_P(Cuda, MemoryContract, ::testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name; });

class CudaDevice : public ::testing::Test {
 protected:
  static std::vector<std::int32_t> values(Stream& stream, const ConstView& view) {
    const Readback copy = test::read_back(stream, view);
    const std::int32_t* data = copy.wait().as<std::int32_t>();
    return {data, data + view.numel()};
  }
  static std::string hazard_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kHazard) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  const std::unique_ptr<Device> device = make_cuda_device({.rank = 5, .check_hazards = true});
  const std::unique_ptr<Stream> compute = device->create_stream("compute");
};

TEST_F(CudaDevice, NamesGpuAndRank) {
  EXPECT_EQ(device->description(), "GPU 0 of rank 5");
  EXPECT_EQ(device->kind(), DeviceKind::cuda);
  EXPECT_EQ(compute->kind(), DeviceKind::cuda);
  EXPECT_TRUE(built_with_cuda());
}

TEST_F(CudaDevice, RefusesAGpuThatIsNotThere) {
  const int count = cuda_device_count();
  for (const int at : {-1, count}) {
    try {
      make_cuda_device({.rank = 2, .device = at});
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      for (const std::string& part :
           {concat("GPU ", at), concat("there are ", count), std::string("CUDA_VISIBLE_DEVICES")})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST_F(CudaDevice, RanksOfAMachineTakeGpusInTurn) {
  const int count = cuda_device_count();
  for (int rank = 0; rank < 2 * count; ++rank) EXPECT_EQ(cuda_device_of(rank), rank % count);
  EXPECT_THROW(cuda_device_of(-1), Error);
}

TEST_F(CudaDevice, StreamsOfTheCpuAndTheGpuWaitForEachOther) {
  const auto cpu = make_cpu_device({.check_hazards = true});
  const auto host = device->create_host_stream("host");
  const auto far = cpu->create_stream("far");
  EXPECT_EQ(host->kind(), DeviceKind::cpu);
  Tensor on_gpu(device->memory(), *compute, DType::i32, Shape{1000}, Category::other);
  Tensor on_host(device->memory(Tier::pinned), kNoStream, DType::i32, Shape{1000}, Category::other);
  int sum = 0;
  for (int round = 1; round <= 20; ++round) {
    Event copied, used, seen;
    test::fill(*compute, on_gpu, round);
    device->copy(*compute, on_host, on_gpu);
    compute->record(copied);
    host->wait(copied);
    host->launch("add", {reads(on_host.view()), writes(on_host.view())}, [view = on_host.view()] {
      for (std::int64_t i = 0; i < view.numel(); ++i) view.as<std::int32_t>()[i] += 1;
    });
    host->record(used);
    far->wait(used);
    far->launch("sum", {}, [&sum, view = on_host.view()] { sum += view.as<std::int32_t>()[999]; });
    far->record(seen);
    compute->wait(seen);
    device->copy(*compute, on_gpu, on_host);
    EXPECT_EQ(values(*compute, on_gpu), std::vector<std::int32_t>(1000, round + 1));
  }
  EXPECT_EQ(sum, 20 * 21 / 2 + 20);
}

TEST_F(CudaDevice, TheGpuWaitsForTheHostsTasksWithoutTheHost) {
  Gate gate;
  const auto host = device->create_host_stream("host");
  Tensor tensor(device->memory(), *compute, DType::i32, Shape{10}, Category::other);
  Event opened, filled;
  gate.close_on(*host);
  host->record(opened);
  compute->wait(opened);
  test::fill(*compute, tensor, 1);
  compute->record(filled);
  EXPECT_FALSE(filled.done());
  gate.open();
  filled.wait();
  EXPECT_EQ(values(*compute, tensor), std::vector<std::int32_t>(10, 1));
}

TEST_F(CudaDevice, CallsThatFollowComeOnceTheGpuIsDone) {
  Tensor tensor(device->memory(), *compute, DType::i32, Shape{100000}, Category::other);
  Tensor host(device->memory(Tier::pinned), kNoStream, DType::i32, Shape{100000}, Category::other);
  std::promise<std::int32_t> last, of_stream;
  Event copied;
  test::fill(*compute, tensor, 7);
  device->copy(*compute, host, tensor);
  compute->record(copied);
  copied.state()->then([&] { last.set_value(host.view().as<std::int32_t>()[99999]); });
  compute->then([&](const std::exception_ptr& error) {
    of_stream.set_value(error ? -1 : host.view().as<std::int32_t>()[99999]);
  });
  EXPECT_EQ(last.get_future().get(), 7);
  EXPECT_EQ(of_stream.get_future().get(), 7);
  compute->synchronize();
}

TEST_F(CudaDevice, HostCodeMayNotTouchItsMemory) {
  const auto host = device->create_host_stream("host");
  const Tensor tensor(device->memory(), *compute, DType::i32, Shape{10}, Category::other);
  const View view = tensor.view();
  const Tensor pinned(device->memory(Tier::pinned), kNoStream, DType::i32, Shape{10},
                      Category::other);
  const std::function<void()> touches[] = {
      [&] { device->host_read(view); },
      [&] { device->host_write(view); },
      [&] { compute->launch("loop", {writes(view)}, [] {}); },
      [&] { compute->host_task("loop", {reads(view)}, [] {}); },
      [&] { host->launch("loop", {writes(view)}, [] {}); },
      [&] { device->copy(*host, pinned, view); },
      [&] { device->fill_zero(*host, view); }};
  for (const auto& touch : touches)
    EXPECT_NE(hazard_of(touch).find("bytes of device memory"), std::string::npos);
  host->synchronize();
  compute->synchronize();
}

TEST_F(CudaDevice, ReportsLaunchesThatNothingOrders) {
  const auto other = device->create_stream("other");
  const Tensor tensor(device->memory(), *compute, DType::i32, Shape{10}, Category::other);
  test::fill(*compute, tensor, 1);
  const std::string text = hazard_of([&] { test::fill(*other, tensor, 2); });
  for (const char* part : {"compute", "other", "fill"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  compute->synchronize();
}

TEST_F(CudaDevice, CopiesPageableMemoryInOrder) {
  Tensor pageable(device->memory(Tier::pageable), kNoStream, DType::i32, Shape{5000},
                  Category::other);
  Tensor a(device->memory(), *compute, DType::i32, Shape{5000}, Category::other);
  Tensor b(device->memory(), *compute, DType::i32, Shape{5000}, Category::other);
  test::fill(*compute, a, 3);
  device->copy(*compute, pageable, a);
  device->copy(*compute, b, pageable);
  device->fill_zero(*compute, pageable);
  EXPECT_EQ(values(*compute, b), std::vector<std::int32_t>(5000, 3));
  EXPECT_EQ(device->host_read(pageable).as<std::int32_t>()[4999], 0);
  EXPECT_EQ(device->copied().to_host, 5000 * 4 * 2);
  EXPECT_EQ(device->copied().to_device, 5000 * 4);
}

TEST_F(CudaDevice, ErrorsOfIssuingStopTheStream) {
  const Tensor tensor(device->memory(), *compute, DType::i32, Shape{10}, Category::other);
  test::fill(*compute, tensor, 1);
  enqueue_cuda(*compute, "fails", std::initializer_list<Access>{},
               [](CudaStreamHandle) { throw_invalid("no such kernel"); });
  test::fill(*compute, tensor, 2);
  Event after;
  compute->record(after);
  for (int i = 0; i < 2; ++i) {
    try {
      i == 0 ? after.wait() : compute->synchronize();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "no such kernel");
    }
  }
  const auto reader = device->create_stream("reader");
  EXPECT_EQ(values(*reader, tensor), std::vector<std::int32_t>(10, 1));
}

TEST_F(CudaDevice, WhatKernelsFindIsTheErrorOfLaterPoints) {
  const auto bad = std::make_shared<std::atomic<bool>>(false);  // the stream asks at its end too
  const auto check = std::make_shared<const std::function<void()>>([bad] {
    if (*bad) throw_invalid("token 7 is outside the table");
  });
  const auto apart = device->create_stream("apart");
  const auto behind = device->create_stream("behind");
  Event before, fine, after, relayed, unrelated;
  compute->record(before);
  for (int i = 0; i < 2; ++i)
    enqueue_cuda(*compute, "embedding", std::initializer_list<Access>{},
                 [check](CudaStreamHandle) { check_at_points(check); });
  compute->record(fine);
  fine.wait();
  compute->record(after);
  behind->wait(after);
  behind->record(relayed);
  apart->record(unrelated);
  *bad = true;
  before.wait();
  unrelated.wait();
  for (const Event* event : {&after, &relayed}) {
    try {
      event->wait();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "token 7 is outside the table");
    }
  }
  EXPECT_THROW(compute->synchronize(), Error);
}

TEST_F(CudaDevice, HoldsToTheMemoryOfTheGpu) {
  try {
    Buffer(device->memory(), kNoStream, std::size_t{1} << 50, Category::parameters);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    for (const char* part : {"memory of GPU 0", "are free"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  Buffer(device->memory(), kNoStream, 1000, Category::parameters);  // nothing has broken
}

/// Last, and in a process of its own: a GPU that has trapped does nothing more.
TEST(CudaFault, TellsTheCallAndThePlace) {
  const auto run = [] {
    const auto device = make_cuda_device({});
    const auto stream = device->create_stream("compute");
    test::trap(*stream);
    Event after;
    stream->record(after);
    std::string text;
    try {
      after.wait();
    } catch (const std::exception& error) {
      text = error.what();
    }
    std::fprintf(stderr, "[%s]\n", text.c_str());
    std::_Exit(text.empty() ? 1 : 0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "CUDA: .* in .*cuda_queue.cpp:[0-9]+");
}

}  // namespace
}  // namespace zero3d::contract
