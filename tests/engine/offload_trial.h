// Trials of an optimizer whose state lies off the device: what they train, where the state goes,
// and that memory is what the plan says.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "zero3d/core/text.h"
#include "zero3d/offload/io_port.h"
#include "zero3d/tests/offload/faulty_port.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {

inline constexpr const char* kBf16 = R"("bf16": {"enabled": true}, )";

struct Trial {
  const char* optimizer = "AdamW";
  int stage = 2;
  int ranks = 2;
  int accumulation = 1;
  const char* precision = "";
  const char* zero = "";  ///< More keys of zero_optimization.
  std::int64_t tile = 2048;
  double clipping = 0.5;
};

inline std::string json_of(const Trial& run) {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": )", run.clipping,
                R"(, "gradient_accumulation_steps": )", run.accumulation, ", ", run.precision,
                R"("zero_allow_untested_optimizer": true, "optimizer": {"type": ")", run.optimizer,
                R"(", "params": {"lr": 0.01}}, "zero_optimization": {)", run.zero,
                R"("sub_group_size": )", run.tile, R"(, "stage": )", run.stage, "}}");
}

inline TrainSettings settings_for(const Trial& run, const OffloadSettings& offload) {
  TrainSettings settings = settings_of(json_of(run), run.ranks);
  settings.offload = offload;
  return settings;
}

inline RunOptions options_for(const Trial& run) {
  return nano_options(nano_gpt2(true), run.ranks, run.accumulation);
}

inline RunResult resident(const Trial& run) {
  return run_engine(settings_for(run, {}), options_for(run));
}

inline OffloadSettings to_cpu(double ratio = 1) {
  OffloadSettings offload;
  offload.optimizer.device = OffloadDevice::cpu;
  offload.optimizer.ratio = ratio;
  return offload;
}

inline OffloadSettings to_drive(const TemporaryFolder& folder, bool pipelined) {
  OffloadSettings offload;
  offload.optimizer.device = OffloadDevice::nvme;
  offload.optimizer.paths = {folder.file("a"), folder.file("b")};
  offload.optimizer.buffer_count = pipelined ? 3 : 1;
  offload.optimizer.pipeline_read = offload.optimizer.pipeline_write = pipelined;
  offload.optimizer.pin_memory = pipelined;
  offload.checksums = pipelined;
  offload.io.block_size = 8192;
  offload.io.port = has_ring() ? make_ring_port : make_thread_port;
  return offload;
}

/// Every tensor's plan is its counter's peak, on the device and in each tier of the host.
inline void expect_planned(const RunResult& result, const std::string& what) {
  for (std::size_t rank = 0; rank < result.memory.size(); ++rank) {
    const MemoryEstimate& plan = result.estimates[rank];
    EXPECT_EQ(result.memory[rank].peak, plan.total()) << what;
    for (const Category category :
         {Category::optimizer_states, Category::gradients, Category::gradient_buckets,
          Category::norm_workspace, Category::optimizer_workspace}) {
      EXPECT_EQ(result.memory[rank].categories[category].peak, plan[Tier::device][category])
          << what << " " << name_of(category);
      if (plan[Tier::pageable][category] > 0) continue;
      EXPECT_EQ(result.pinned_memory[rank].categories[category].peak, plan[Tier::pinned][category])
          << what << " pinned " << name_of(category);
    }
    EXPECT_LE(result.pinned_memory[rank].peak, plan.total({Tier::pinned})) << what;
  }
}

}  // namespace zero3d::test
