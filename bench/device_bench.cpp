// What the CPU device costs: enqueueing, waking, handing over between streams, the hazard checker,
// loops and memory. Run it on an idle machine; times are per item.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/device/parallel.h"

namespace zero3d {
namespace {

std::unique_ptr<Device> device_with(bool checked, int threads = 1) {
  CpuDeviceOptions options;
  options.threads = threads;
  options.check_hazards = checked;
  options.poison_on_free = false;
  return make_cpu_device(options);
}

/// Launches in a row while the worker keeps up: a step of 2,000 small kernels with three operands.
void busy_launches(benchmark::State& state) {
  constexpr int kLaunches = 2000;
  constexpr std::int64_t kTensors = 50;
  const auto device = device_with(state.range(0) != 0);
  const auto stream = device->create_stream("compute");
  std::vector<Tensor> tensors;
  for (std::int64_t i = 0; i < kTensors; ++i)
    tensors.emplace_back(device->memory(), kNoStream, DType::f32, Shape{1000},
                         Category::activations);
  for (auto _ : state) {
    for (int i = 0; i < kLaunches; ++i) {
      const auto at = static_cast<std::size_t>(i % (kTensors - 2));
      stream->launch("layer norm",
                     {reads(tensors[at]), reads(tensors[at + 1]), writes(tensors[at + 2])}, [] {});
    }
    stream->synchronize();
  }
  state.SetItemsProcessed(state.iterations() * kLaunches);
}
BENCHMARK(busy_launches)->ArgName("checked")->Arg(0)->Arg(1)->UseRealTime();

void launch_and_synchronize(benchmark::State& state) {
  const auto device = device_with(false);
  const auto stream = device->create_stream("compute");
  for (auto _ : state) {
    stream->launch("task", {}, [] {});
    stream->synchronize();
  }
}
BENCHMARK(launch_and_synchronize)->UseRealTime();

/// Two streams that wait for each other in turn, all enqueued ahead.
void hand_over_between_streams(benchmark::State& state) {
  constexpr int kRounds = 500;
  const auto device = device_with(state.range(0) != 0);
  const auto first = device->create_stream("first");
  const auto second = device->create_stream("second");
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
      Event forth, back;
      first->launch("task", {}, [] {});
      first->record(forth);
      second->wait(forth);
      second->launch("task", {}, [] {});
      second->record(back);
      first->wait(back);
    }
    first->synchronize();
  }
  state.SetItemsProcessed(state.iterations() * kRounds * 2);
}
BENCHMARK(hand_over_between_streams)->ArgName("checked")->Arg(0)->Arg(1)->UseRealTime();

void parallel_for_chunks(benchmark::State& state) {
  const auto device = device_with(false, static_cast<int>(state.range(0)));
  const auto stream = device->create_stream("compute");
  const std::int64_t chunks = state.range(1);
  constexpr std::int64_t kGrain = 32768;  // floats: a few microseconds of work
  std::vector<float> data(static_cast<std::size_t>(chunks * kGrain), 1.0f);
  constexpr int kLoops = 100;
  for (auto _ : state) {
    stream->launch("loops", {}, [&] {
      for (int i = 0; i < kLoops; ++i) {
        parallel_for(chunks * kGrain, kGrain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t k = begin; k < end; ++k) data[static_cast<std::size_t>(k)] *= 1.0001f;
        });
      }
    });
    stream->synchronize();
  }
  state.SetItemsProcessed(state.iterations() * kLoops * chunks);
}
BENCHMARK(parallel_for_chunks)
    ->ArgNames({"threads", "chunks"})
    ->ArgsProduct({{1, 2}, {1, 2, 4, 16, 64}})
    ->UseRealTime();

/// The stash of a step: blocks taken in order, filled, and returned in reverse.
void memory_of_a_step(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto device = device_with(false);
  for (auto _ : state) {
    std::vector<Buffer> stash;
    for (int i = 0; i < 32; ++i) {
      stash.emplace_back(device->memory(), kNoStream, bytes, Category::activations);
      std::memset(stash.back().data(), i, bytes);
    }
    while (!stash.empty()) stash.pop_back();
  }
  state.SetBytesProcessed(state.iterations() * 32 * state.range(0));
}
BENCHMARK(memory_of_a_step)->ArgName("bytes")->RangeMultiplier(16)->Range(1 << 10, 16 << 20);

/// The same, each time on a device of its own: page faults included.
void memory_of_the_first_step(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    const auto device = device_with(false);
    std::vector<Buffer> stash;
    for (int i = 0; i < 32; ++i) {
      stash.emplace_back(device->memory(), kNoStream, bytes, Category::activations);
      std::memset(stash.back().data(), i, bytes);
    }
  }
  state.SetBytesProcessed(state.iterations() * 32 * state.range(0));
}
BENCHMARK(memory_of_the_first_step)
    ->ArgName("bytes")
    ->RangeMultiplier(16)
    ->Range(1 << 10, 16 << 20);

}  // namespace
}  // namespace zero3d

BENCHMARK_MAIN();
