// The plan of host memory against what a run takes of it: never less, and hardly more, whatever
// leaves the device and whatever the run does beside training.
#include <gtest/gtest.h>

#include <filesystem>

#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/tests/engine/offload_trial.h"

namespace zero3d::test {
namespace {

struct Doing {
  bool exports = false;
  bool saves = false;
  bool asynchronously = false;
};

struct HostMemory {
  std::int64_t planned = 0;  ///< Before the first step.
  std::int64_t joined = 0;   ///< After the last call.
  std::int64_t peak = 0;
};

/// A plan of a few kilobytes has others than the constant ones.
ModelConfig small_model(bool offloads) {
  ModelConfig model = nano_gpt2(true);
  model.hidden_size = 64;
  model.head_dim = 16;
  model.intermediate_size = 256;
  model.vocab_size = offloads ? 1000 : 8000;
  return model;
}

/// `tells`: the engine knows from the start what the run does.
HostMemory measure(const TrainSettings& settings, int ranks, const Doing& doing, bool tells) {
  const TemporaryFolder folder;
  RunOptions options = nano_options(small_model(settings.offload.on()), ranks, 1);
  options.exports = tells && doing.exports;
  options.engine.sequence_length = kNanoSequence;
  if (tells) options.engine.checkpoints = {doing.saves, doing.asynchronously, false};
  HostMemory found;
  options.body = [&](Engine& engine, Module&, int rank) {
    const auto planned = [&] {
      return engine.memory_estimate(settings.micro_batch, kNanoSequence).total(kHostTiers);
    };
    const std::int64_t before = planned();
    for (int step = 0; step < 1; ++step) {
      const TokenBatch batch = options.batch({rank, step, 0});
      const MicroBatch view = batch.view();
      engine.train_batch({&view, 1});
    }
    if (doing.saves)
      engine.save_checkpoint(folder.path().string(), {.asynchronous = doing.asynchronously});
    engine.finish_checkpoint();
    if (doing.exports) engine.model().for_each_parameter([](auto&, const ConstView&) {});
    engine.model().synchronize();
    if (rank != 0) return;
    Device& device = engine.model().device();
    found = {before, planned(),
             device.memory(Tier::pinned).use().peak + device.memory(Tier::pageable).use().peak};
  };
  run_engine(settings, options);
  return found;
}

struct Case {
  int stage;
  int ranks;
  const char* precision;
  OffloadDevice optimizer;
  OffloadDevice parameters;
  bool pinned = true;
  double ratio = 1;
};

std::vector<Case> cases() {
  constexpr OffloadDevice none = OffloadDevice::none, cpu = OffloadDevice::cpu,
                          nvme = OffloadDevice::nvme;
  return {{0, 1, "", none, none},      {2, 2, kBf16, none, none},
          {1, 1, kBf16, cpu, none},    {2, 2, "", cpu, none},
          {2, 1, kBf16, nvme, none},   {3, 1, kBf16, cpu, cpu},
          {3, 2, "", cpu, cpu},        {3, 2, kBf16, none, cpu},
          {3, 1, kBf16, nvme, nvme},   {3, 2, "", nvme, cpu},
          {3, 1, kBf16, none, nvme},   {2, 1, kBf16, cpu, none, false},
          {3, 1, "", cpu, cpu, false}, {3, 1, kBf16, cpu, none, true, 0.5}};
}

TrainSettings settings_of(const Case& c, const TemporaryFolder& folder) {
  TrainSettings settings = settings_for(
      {.stage = c.stage, .ranks = c.ranks, .precision = c.precision, .tile = 1'000'000}, {});
  OffloadSettings& offload = settings.offload;
  offload.optimizer.device = c.optimizer;
  offload.optimizer.ratio = c.ratio;
  offload.parameters.device = c.parameters;
  offload.optimizer.pin_memory = offload.parameters.pin_memory = c.pinned;
  offload.optimizer.paths = offload.parameters.paths = {folder.file("drive")};
  offload.parameters.max_in_cpu = 0;
  return settings;
}

void expect_honest(std::int64_t planned, std::int64_t peak) {
  EXPECT_LE(peak, planned);
  EXPECT_GE(static_cast<double>(peak), 0.97 * static_cast<double>(planned));
}

TEST(HostPlan, IsWithinThreePercentOfThePeak) {
  for (const Case& c : cases()) {
    for (const Doing& doing : {Doing{}, Doing{.exports = true, .saves = true}}) {
      SCOPED_TRACE(concat("stage ", c.stage, ", ranks ", c.ranks, ", ", c.precision, " optimizer ",
                          name_of(c.optimizer), ", parameters ", name_of(c.parameters), ", ratio ",
                          c.ratio, doing.exports ? ", exports and saves" : ""));
      const TemporaryFolder folder;
      const HostMemory told = measure(settings_of(c, folder), c.ranks, doing, true);
      expect_honest(told.planned, told.peak);
      EXPECT_EQ(told.joined, told.planned);
    }
  }
}

TEST(HostPlan, WhatIsNotToldJoinsWhenItComes) {
  const TemporaryFolder folder;
  const TrainSettings settings =
      settings_of({3, 2, kBf16, OffloadDevice::cpu, OffloadDevice::cpu}, folder);
  const HostMemory plain = measure(settings, 2, {}, false);
  for (const Doing& doing : {Doing{.exports = true}, Doing{.saves = true},
                             Doing{.saves = true, .asynchronously = true}}) {
    const HostMemory late = measure(settings, 2, doing, false);
    EXPECT_EQ(late.planned, plain.planned);
    EXPECT_GT(late.joined, late.planned);
    expect_honest(late.joined, late.peak);
  }
}

/// An export gathers each unit once, though its parameters interleave with those of others.
TEST(HostPlan, AnExportGathersEachUnitOnce) {
  TrainSettings settings = settings_for({.stage = 3, .ranks = 2}, {});
  settings.sharding.persistent_parameter = 0;
  RunOptions options = nano_options(small_model(true), 2, 1);
  options.engine.groups = {{[](const ParameterSpec& spec) { return spec.shape.rank() == 1; }, {}}};
  std::vector<CommCounter> counters(2);
  std::vector<int> units(2);
  options.wrap = [&](std::unique_ptr<Communicator> world) {
    CommCounter& counter = counters[static_cast<std::size_t>(world->rank())];
    return make_counting(std::move(world), counter);
  };
  std::vector<std::int64_t> gathers(2);
  options.body = [&](Engine& engine, Module&, int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const TokenBatch batch = options.batch({rank, 0, 0});
    const MicroBatch view = batch.view();
    engine.train_batch({&view, 1});
    engine.model().synchronize();
    const auto count = [&] { return counters[at].volume().operations["all_gather"].calls; };
    const std::int64_t before = count();
    engine.model().for_each_parameter([](auto&, const ConstView&) {});
    gathers[at] = count() - before;
    units[at] = engine.model().plan().layout.unit_count();
  };
  run_engine(settings, options);
  EXPECT_GT(units[0], 5);
  EXPECT_EQ(gathers[0], units[0]);
}

}  // namespace
}  // namespace zero3d::test
