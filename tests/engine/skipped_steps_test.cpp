// Steps that are skipped for a gradient that is not finite: who is named, and when the run ends.
#include <gtest/gtest.h>

#include <limits>

#include "adamw_config.h"
#include "zero3d/core/text.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

TEST(SkippedSteps, TooManySkippedStepsInARowEndTheRun) {
  const auto blocks = [](int) {
    ProbeParameter parameter = probe_parameter("p0", Shape{4}, [](const ProbeClock& at) {
      return at.step >= 2 ? std::numeric_limits<float>::infinity() : 1.0f;
    });
    return std::vector<ProbeBlockSpec>{{{parameter}}};
  };
  RunOptions options = probe_options(blocks, 2);
  options.steps = 10;
  options.engine.max_consecutive_skips = 3;
  const LogCapture log;
  try {
    run_engine(json_of(2), options);
    FAIL() << "ran on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNumeric);
    const std::string message = error.what();
    for (const char* part : {"3 steps in a row", "inf", "p0", "max_consecutive_skips"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(log.with("skipped").size(), 3u);
}

/// With whole gradients nobody has a shard, and the first rank counts.
TEST(SkippedSteps, ABadGradientIsNamedByTheRankWhoseShardHoldsIt) {
  const auto blocks = [](int rank) {
    ProbeParameter second = probe_parameter("second", Shape{3000}, {});
    second.gradient = [rank](const ProbeClock&, std::int64_t i) {
      return rank == 0 && i >= 2500 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    };
    const auto one = [](const ProbeClock&) { return 1.0f; };
    return std::vector<ProbeBlockSpec>{{{probe_parameter("first", Shape{3000}, one)}}, {{second}}};
  };
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* mics : {"", R"("mics_shard_size": 2)"}) {
      if (*mics != 0 && stage < 3) continue;
      RunOptions options = probe_options(blocks, *mics != 0 ? 4 : 2);
      options.steps = 1;
      const LogCapture log;
      run_engine(json_of(stage, 1, "", mics), options);
      ASSERT_EQ(log.with("skipped").size(), 1u);
      const std::string line = log.with("skipped")[0];
      for (const char* part : {"NaN in the averaged gradient of second", "the loss of rank 0 is",
                               stage == 0 ? "the shard of rank 0" : "the shard of rank 1"})
        EXPECT_NE(line.find(part), std::string::npos) << stage << ": " << line;
    }
  }
}

TEST(SkippedSteps, ABadGradientOfSeveralShardsIsNamedByTheFirst) {
  const auto everywhere = [](int, const Moment&) { return std::numeric_limits<float>::infinity(); };
  RunOptions options = probe_options({3000}, everywhere, 2);
  options.steps = 1;
  const LogCapture log;
  run_engine(json_of(2), options);
  ASSERT_EQ(log.with("skipped").size(), 1u);
  EXPECT_NE(log.with("skipped")[0].find("the shard of rank 0"), std::string::npos);
}

TEST(SkippedSteps, AnOverflowAtTheSmallestLossScaleEndsTheRunButAtStage0) {
  for (int stage = 0; stage <= 3; ++stage) {
    RunOptions options = probe_options(
        {5}, [](int, const Moment&) { return std::numeric_limits<float>::infinity(); }, 2);
    const auto scale_after = [&](int steps) {
      options.steps = steps;
      double scale = 0;
      options.after = [&](Engine& engine, int rank) {
        if (rank == 0) scale = engine.loss_scale();
      };
      const LogCapture quiet;
      run_engine(json_of(stage, 1, R"("fp16": {"enabled": true, "initial_scale_power": 4,
                                               "hysteresis": 1, "min_loss_scale": 4})"),
                 options);
      return scale;
    };
    EXPECT_EQ(scale_after(2), 4.0) << stage;
    std::string message;
    try {
      EXPECT_EQ(scale_after(3), 4.0);
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_EQ(message.find("at its minimum 4") != std::string::npos, stage > 0) << message;
  }
}

TEST(SkippedSteps, AGoodStepStartsTheCountOfSkipsAnew) {
  const auto blocks = [](int) {
    ProbeParameter parameter = probe_parameter("p0", Shape{4}, [](const ProbeClock& at) {
      return at.step % 3 < 2 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    });
    return std::vector<ProbeBlockSpec>{{{parameter}}};
  };
  RunOptions options = probe_options(blocks, 2);
  options.steps = 9;
  options.engine.max_consecutive_skips = 3;
  options.after = [](Engine& engine, int) {
    EXPECT_EQ(engine.skipped_steps(), 6);
    EXPECT_EQ(engine.global_steps(), 9);
    EXPECT_TRUE(engine.was_step_applied());
  };
  const LogCapture log;
  run_engine(json_of(3), options);
  EXPECT_EQ(log.with("skipped").size(), 6u);
}

}  // namespace
}  // namespace zero3d::test
