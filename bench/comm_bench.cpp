// Bandwidth of the collectives between threads against this machine's memcpy, both measured in this
// run. Usage: comm_bench [ranks] [--mpi]. Algorithm bandwidth is bytes of the full buffer over
// time; bus bandwidth multiplies by what a ring sends per byte, (n-1)/n or twice that, as
// nccl-tests do.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/parallel/comm/mpi_communicator.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The best of five times per call: a busy machine only ever adds time.
double best_time(int calls, const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < 5; ++i) best = std::min(best, seconds_of(work) / calls);
  return best;
}

/// Bytes per second that each of all ranks copies when all copy at once: the bound of a collective
/// that moves data by copies.
double memcpy_speed(Communicator& comm, std::size_t bytes, int calls) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes);
  comm.exchange("start");
  const double time = best_time(calls, [&] {
    for (int i = 0; i < calls; ++i) {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" : : "r"(to.data()) : "memory");  // keeps the copy
    }
  });
  comm.exchange("end");
  return static_cast<double>(bytes) / time;
}

struct Bench {
  Communicator& comm;
  Device& device;
  Stream& stream;

  double time(int calls, const std::function<void()>& operation) {
    operation();
    stream.synchronize();
    return best_time(calls, [&] {
      for (int i = 0; i < calls; ++i) operation();
      stream.synchronize();
    });
  }

  void row(const char* name, std::size_t bytes, double seconds, double bus_factor, double memcpy) {
    if (comm.rank() != 0) return;
    const double speed = static_cast<double>(bytes) / seconds;
    std::printf("%-22s %10zu KiB %10.1f us  alg %7.2f GB/s  bus %7.2f GB/s  alg/memcpy %5.2f\n",
                name, bytes >> 10, seconds * 1e6, speed / 1e9, speed * bus_factor / 1e9,
                speed / memcpy);
  }

  void size(std::int64_t numel) {
    const int n = comm.size();
    const std::int64_t piece = numel / n;
    const int calls = static_cast<int>(std::clamp<std::int64_t>((16 << 20) / numel, 2, 200));
    Tensor full(device.memory(), kNoStream, DType::f32, Shape{piece * n}, Category::other);
    Tensor half(device.memory(), kNoStream, DType::bf16, Shape{piece * n}, Category::other);
    Tensor shard(device.memory(), kNoStream, DType::f32, Shape{piece}, Category::other);
    for (const Tensor* tensor : {&full, &half, &shard}) device.fill_zero(stream, *tensor);
    stream.synchronize();
    const std::size_t bytes = full.view().bytes();
    const double memcpy = memcpy_speed(comm, bytes, calls);
    const double share = static_cast<double>(n - 1) / n;
    const GatherSegment gather{shard, full};
    const ReduceSegment reduce{full, shard}, reduce_half{half, shard};
    row("all_gather fp32", bytes,
        time(calls,
             [&] {
               comm.all_gather(stream, {&gather, 1});
             }),
        share, memcpy);
    row("reduce_scatter fp32", bytes,
        time(calls,
             [&] {
               comm.reduce_scatter(stream, {&reduce, 1}, {});
             }),
        share, memcpy);
    row("reduce_scatter bf16", bytes / 2,
        time(calls,
             [&] {
               comm.reduce_scatter(stream, {&reduce_half, 1}, {1.0f, 0.5f, {}});
             }),
        share, memcpy);
    row("all_reduce fp32", bytes, time(calls, [&] { comm.all_reduce(stream, full, {}); }),
        2 * share, memcpy);
    if (n == 1) return;
    const int peer = comm.rank() ^ 1;
    if (peer >= n) return;
    row("send + recv", bytes,
        time(calls,
             [&] {
               comm.send(stream, full, peer);
               comm.recv(stream, full, peer);
             }),
        1, memcpy);
  }
};

void run_bench(Communicator& comm) {
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("comm");
  Bench bench{comm, *device, *stream};
  const double latency = bench.time(1000, [&] { comm.barrier(*stream); });
  if (comm.rank() == 0)
    std::printf("%s: barrier %.2f us\n", comm.description().c_str(), latency * 1e6);
  for (const std::int64_t numel : {1 << 14, 1 << 18, 1 << 22, 1 << 24}) bench.size(numel);
}

int run(int argc, char** argv) {
  int ranks = 2;
  bool mpi = launched_by_mpi();
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--mpi") {
      mpi = true;
    } else {
      ranks = std::atoi(argv[i]);
    }
  }
  if (mpi) {
    const MpiSession session;
    run_mpi_rank(run_bench);
  } else {
    run_ranks(ranks, run_bench);
  }
  return 0;
}

}  // namespace
}  // namespace zero3d

int main(int argc, char** argv) {
  try {
    return zero3d::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
