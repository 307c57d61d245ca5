// The decorators: what they count, how long they delay, and what a comparison of ranks says.
#include "zero3d/parallel/comm/decorators.h"

#include <gtest/gtest.h>

#include <ctime>

#include "zero3d/device/device.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d {
namespace {

TEST(Counting, CountsInTheConventionOfThePapers) {
  run_ranks(2, [](Communicator& world) {
    CommCounter counter;
    const auto comm = make_counting(world.split(0, world.rank()), counter);
    const auto device = make_cpu_device({});
    const auto stream = device->create_stream("comm");
    Tensor full(device->memory(), kNoStream, DType::bf16, Shape{20}, Category::other);
    Tensor shard(device->memory(), kNoStream, DType::bf16, Shape{10}, Category::other);
    Tensor wide(device->memory(), kNoStream, DType::f32, Shape{10}, Category::other);
    device->fill_zero(*stream, full);
    device->fill_zero(*stream, shard);
    device->fill_zero(*stream, wide);
    const GatherSegment gather{shard, full};
    const ReduceSegment reduce{full, wide};
    comm->all_gather(*stream, {&gather, 1});
    comm->reduce_scatter(*stream, {&reduce, 1}, {});
    comm->reduce_scatter(*stream, {&reduce, 1}, {1, 1, DType::f32});
    comm->all_reduce(*stream, wide, {});
    comm->broadcast(*stream, wide, 1);
    const ConstView pieces[] = {wide.view().flat(0, 4), wide.view().flat(4, 2)};
    Tensor arrived(device->memory(), kNoStream, DType::f32, Shape{8}, Category::other);
    const std::int64_t mine = comm->rank() == 0 ? 4 : 2;
    const View arriving[] = {arrived.view().flat(0, mine), arrived.view().flat(4, mine)};
    comm->all_to_all(*stream, pieces, arriving);
    if (comm->rank() == 0) comm->send(*stream, wide, 1);
    if (comm->rank() == 1) comm->recv(*stream, wide, 0);
    const auto half = comm->split(comm->rank(), 0);  // one rank each: nothing travels
    half->all_reduce(*stream, wide, {});
    stream->synchronize();

    const CommVolume volume = counter.volume();
    const auto expect = [&](const std::string& name, std::int64_t calls, std::int64_t elements,
                            std::int64_t bytes) {
      ASSERT_TRUE(volume.operations.contains(name)) << name;
      const auto& entry = volume.operations.at(name);
      EXPECT_EQ(entry.calls, calls) << name;
      EXPECT_EQ(entry.elements, elements) << name;
      EXPECT_EQ(entry.bytes, bytes) << name;
    };
    expect("all_gather", 1, 20, 40);
    expect("reduce_scatter", 2, 40, 40 + 80);
    expect("all_reduce", 2, 20, 80);
    expect("broadcast", 1, 10, 40);
    expect("all_to_all", 1, 6, 24);
    expect(comm->rank() == 0 ? "send" : "recv", 1, 10, 40);
    EXPECT_EQ(volume.elements(), 106);
    EXPECT_EQ(volume.bytes(), 40 + 120 + 80 + 40 + 24 + 40);
    counter.reset();
    EXPECT_EQ(counter.volume().elements(), 0);
  });
}

TEST(Delayed, TakesAsLongAsTheNetworkWouldWithoutTheCpu) {
  run_ranks(2, [](Communicator& world) {
    const auto device = make_cpu_device({});
    const auto stream = device->create_stream("comm");
    // 1 ms + 25,000 bytes at 1 MB/s: an all_reduce of 100 kB on 2 ranks sends 2 x 50 kB.
    const auto comm =
        make_delayed(world.split(0, world.rank()), {std::chrono::milliseconds(1), 1e6});
    Tensor data(device->memory(), kNoStream, DType::f32, Shape{25000}, Category::other);
    device->fill_zero(*stream, data);
    stream->synchronize();
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t cpu_begin = std::clock();
    comm->all_reduce(*stream, data, {});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50))
        << "the delay blocked the host";
    stream->synchronize();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(101));
    EXPECT_LT(static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC, 0.08);
  });
}

TEST(Delayed, AGroupOfOneDoesNotWait) {
  const auto comm = make_delayed(make_self_communicator(), {std::chrono::seconds(100), 1});
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("comm");
  Tensor data(device->memory(), kNoStream, DType::f32, Shape{3}, Category::other);
  device->fill_zero(*stream, data);
  comm->all_reduce(*stream, data, {});
  stream->synchronize();
}

/// Runs `body` on ranks and returns what the world's failure says.
std::string mismatch(int size, const std::function<void(Communicator&, Stream&, Device&)>& body) {
  try {
    run_ranks(size, [&](Communicator& comm) {
      const auto device = make_cpu_device({});
      const auto stream = device->create_stream("comm");
      body(comm, *stream, *device);
      stream->synchronize();
    });
  } catch (const CommError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Agreement, ComparesRootsOptionsCountsAndSequence) {
  const auto with = [](std::int64_t numel, auto call) {
    return [=](Communicator& comm, Stream& stream, Device& device) {
      Tensor data(device.memory(), kNoStream, DType::f32, Shape{numel}, Category::other);
      device.fill_zero(stream, data);
      comm.barrier(stream);
      call(comm, stream, data.view());
      stream.synchronize();
    };
  };
  const std::string roots = mismatch(
      2, with(8, [](Communicator& c, Stream& s, const View& v) { c.broadcast(s, v, c.rank()); }));
  EXPECT_NE(roots.find("#1 broadcast of 8 x fp32 from root 0"), std::string::npos) << roots;
  EXPECT_NE(roots.find("#1 broadcast of 8 x fp32 from root 1"), std::string::npos) << roots;
  const std::string scales = mismatch(2, with(8, [](Communicator& c, Stream& s, const View& v) {
                                        c.all_reduce(s, v, {1.0f, 1.0f + c.rank(), {}});
                                      }));
  EXPECT_NE(scales.find("scale_out 2"), std::string::npos) << scales;
  const std::string counts = mismatch(3, with(8, [](Communicator& c, Stream& s, const View& v) {
                                        c.all_reduce(s, v.flat(0, c.rank() == 2 ? 7 : 8), {});
                                      }));
  EXPECT_NE(counts.find("group rank 2: #1 all_reduce of 7 x fp32"), std::string::npos) << counts;
}

TEST(Agreement, ComparesHostOperationsAndSplits) {
  const std::string host = mismatch(2, [](Communicator& comm, Stream&, Device&) {
    if (comm.rank() == 0) comm.exchange("x");
    if (comm.rank() == 1) comm.split(0, 0);
  });
  EXPECT_NE(host.find("#0 exchange (host)"), std::string::npos) << host;
  EXPECT_NE(host.find("#0 split (host)"), std::string::npos) << host;
  const std::string in_split = mismatch(2, [](Communicator& world, Stream& stream, Device& device) {
    const auto group = world.split(0, world.rank());
    Tensor data(device.memory(), kNoStream, DType::f32, Shape{8}, Category::other);
    device.fill_zero(stream, data);
    if (group->rank() == 0) group->barrier(stream);
    if (group->rank() == 1) group->all_reduce(stream, data, {});
    stream.synchronize();
  });
  EXPECT_NE(in_split.find("#0 barrier"), std::string::npos) << in_split;
}

TEST(Agreement, ALongListOfSegmentsIsShownWhereItDiffers) {
  const std::string text = mismatch(2, [](Communicator& comm, Stream& stream, Device& device) {
    Tensor full(device.memory(), kNoStream, DType::f32, Shape{400}, Category::other);
    Tensor shard(device.memory(), kNoStream, DType::f32, Shape{200}, Category::other);
    device.fill_zero(stream, full);
    std::vector<ReduceSegment> segments;
    for (std::int64_t i = 0; i < 100; ++i) {
      const std::int64_t piece = i == 90 && comm.rank() == 1 ? 1 : 2;
      segments.push_back({full.view().flat(4 * i, 2 * piece), shard.view().flat(2 * i, piece)});
    }
    comm.reduce_scatter(stream, segments, {});
    stream.synchronize();
  });
  EXPECT_NE(text.find(", 1 x fp32, 2 x fp32"), std::string::npos) << text;
  EXPECT_LT(text.size(), 700u);
}

}  // namespace
}  // namespace zero3d
