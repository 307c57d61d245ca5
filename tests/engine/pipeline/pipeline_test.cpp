// Pipelines train to the bits of the same replicas without stages, in every schedule and ZeRO
// stage, and take the memory that is planned.
#include <gtest/gtest.h>

#include "pipelines.h"
#include "zero3d/core/error.h"

namespace zero3d::test {
namespace {

using enum PipelineSchedule;
constexpr PipelineSchedule kSchedules[] = {gpipe, one_forward_one_backward, interleaved,
                                           zero_bubble_h1, zero_bubble_v};

TEST(Pipeline, EveryScheduleAndStageGivesTheBitsWithoutStages) {
  const ModelConfig model = deep_nano(false);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto& [pp, dp] : {std::pair{2, 2}, std::pair{4, 1}}) {
      // Of four stages without replicas the ends alone: nothing is sharded there.
      if ((pp == 4 || kSanitized) && stage % 3 != 0) continue;
      const RunResult plain = run_pipeline(PipelineRun{.pp = 1, .dp = dp, .stage = stage}, model);
      for (const PipelineSchedule schedule : kSchedules) {
        const PipelineRun run{.pp = pp, .dp = dp, .stage = stage, .schedule = schedule};
        SCOPED_TRACE(run.text());
        const RunResult result = run_pipeline(run, model);
        EXPECT_TRUE(same_bits(plain, result));
        expect_planned_memory(result);
      }
    }
  }
}

}  // namespace
}  // namespace zero3d::test
