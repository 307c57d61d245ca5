// Training with parameters that lie off the device between their uses: no bit changes, and memory
// is what the plan says.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

struct Scenario {
  int ranks = 1;
  bool bf16 = false;
  int secondary = 1;
  int persistent = 0;
  std::int64_t prefetch = 1 << 30;
};

std::string json_of(const Scenario& c) {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "bf16": {"enabled": )",
                c.bf16 ? "true" : "false", R"(}, "zero_optimization": {"stage": 3,
      "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": )",
                c.prefetch, R"(, "stage3_param_persistence_threshold": )", c.persistent,
                R"(, "zero_hpz_partition_size": )", c.secondary, "}}");
}

/// A whole engine: the bits of the run without offload, and the memory of the plan.
TEST(OffloadedTraining, TrainToTheSameBits) {
  const LogCapture log;
  for (const Scenario& c : {Scenario{1},
                            {1, true},
                            {1, true, 1, 100},
                            {2},
                            {2, true},
                            {2, false, 1, 100},
                            {2, false, 1, 0, 0},
                            {4, true, 2, 100}}) {
    SCOPED_TRACE(json_of(c));
    const RunOptions options = nano_options(nano_gpt2(true), c.ranks, 2);
    TrainSettings settings = settings_of(json_of(c), c.ranks);
    const RunResult resident = run_engine(settings, options);
    settings.offload.parameters.device = OffloadDevice::cpu;
    const RunResult moved = run_engine(settings, options);
    EXPECT_TRUE(same_bits(resident, moved));
    for (std::size_t rank = 0; rank < moved.memory.size(); ++rank) {
      const MemoryEstimate& plan = moved.estimates[rank];
      const MemoryUse& device = moved.memory[rank];
      for (const Category category : {Category::parameters, Category::gathered_parameters})
        EXPECT_EQ(device.categories[category].peak, plan[Tier::device][category])
            << name_of(category);
      EXPECT_EQ(device.peak, plan.total());
      EXPECT_EQ(moved.pinned_memory[rank].categories[Category::parameters].peak,
                plan[Tier::pinned][Category::parameters]);
      EXPECT_LE(moved.pinned_memory[rank].categories[Category::gathered_parameters].peak,
                plan[Tier::pinned][Category::gathered_parameters]);
      EXPECT_LT(device.categories[Category::parameters].peak,
                resident.memory[rank].categories[Category::parameters].peak);
    }
  }
}

/// Below stage 3 the setting changes nothing.
TEST(OffloadedTraining, StayOnTheDeviceWhereTheyAreNotSharded) {
  TrainSettings settings = settings_of(R"({"train_micro_batch_size_per_gpu": 2,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 2}})",
                                       2);
  settings.offload.parameters.device = OffloadDevice::cpu;
  const RunResult run = run_engine(settings, nano_options(nano_gpt2(true), 2, 1));
  EXPECT_EQ(run.estimates[0][Tier::pinned][Category::parameters], 0);
  EXPECT_EQ(run.pinned_memory[0].categories[Category::parameters].peak, 0);
}

/// What one rank gathers it fetches by the plan, within its budget.
TEST(OffloadedTraining, OfOneRankAreFetchedWithinTheBudget) {
  const LogCapture log;
  const Scenario c{.ranks = 1};
  RunOptions options = nano_options(nano_gpt2(false), 1, 2);
  TrainSettings settings = settings_of(json_of(c), 1);
  settings.offload.parameters.device = OffloadDevice::cpu;
  const RunResult wide = run_engine(settings, options);
  std::int64_t arena = 0, largest = 0;
  options.after = [&](Engine& engine, int) {
    arena = engine.model().passes().arena_elements();
    for (const Unit& unit : engine.model().plan().layout.units())
      largest = std::max(largest, unit.padded);
  };
  options.budget_bytes = wide.estimates[0].total() - 4096;
  const RunResult tight = run_engine(settings, options);
  EXPECT_TRUE(same_bits(wide, tight));
  EXPECT_LT(tight.memory[0].peak, wide.memory[0].peak);
  EXPECT_GE(arena, largest);
  EXPECT_FALSE(log.with("is clipped").empty());
}

}  // namespace
}  // namespace zero3d::test
