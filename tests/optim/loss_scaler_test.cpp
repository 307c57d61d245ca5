// The loss scale after each step, against sequences recorded from DeepSpeed, and its clipping rule.
#include "zero3d/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/optim/clip.h"

namespace zero3d {
namespace {

/// The scale after each step of a history: '.' a clean step, 'x' an overflow.
std::vector<double> scales(const LossScaler& scaler, LossScaler::State& state,
                           const std::string& history) {
  std::vector<double> scales;
  for (const char step : history) {
    scaler.update(state, step == 'x');
    scales.push_back(state.scale);
  }
  return scales;
}

std::vector<double> scales(const LossScaler& scaler, const std::string& history) {
  LossScaler::State state = scaler.initial();
  return scales(scaler, state, history);
}

LossScalerOptions small(int power, std::int64_t window = 3) {
  LossScalerOptions options;
  options.initial_scale_power = power;
  options.window = window;
  return options;
}

TEST(LossScaler, FollowsTheRecordedSequence) {
  LossScaler scaler(small(4));
  EXPECT_EQ(scales(scaler, "....xx.x....x...."),
            (std::vector<double>{16, 16, 16, 32, 32, 16, 16, 8, 8, 8, 8, 16, 16, 16, 16, 16, 32}));
}

TEST(LossScaler, ConsecutiveHysteresisRefillsOnCleanSteps) {
  LossScalerOptions options = small(4);
  options.consecutive_hysteresis = true;
  LossScaler scaler(options);
  EXPECT_EQ(scales(scaler, "x.x.xx."), (std::vector<double>{16, 16, 16, 16, 16, 8, 8}));
}

TEST(LossScaler, OverflowAtTheFloorIsAnErrorAndChangesNothing) {
  LossScalerOptions options = small(3);
  options.hysteresis = 1;
  LossScaler scaler(options);
  LossScaler::State state = scaler.initial();
  EXPECT_EQ(scales(scaler, state, "xxx"), (std::vector<double>{4, 2, 1}));
  const LossScaler::State before = state;
  try {
    scaler.update(state, true);
    ADD_FAILURE() << "an overflow at the floor passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNumeric);
  }
  EXPECT_EQ(state, before);
}

TEST(LossScaler, StageZeroHasNeitherHysteresisNorFloorError) {
  LossScalerOptions options = small(2);
  options.stage0 = true;
  LossScaler scaler(options);
  EXPECT_EQ(scales(scaler, "xxxx...."), (std::vector<double>{2, 1, 1, 1, 1, 1, 1, 2}));
}

TEST(LossScaler, HysteresisZeroNeverShrinks) {
  LossScalerOptions options = small(4);
  options.hysteresis = 0;
  LossScaler scaler(options);
  EXPECT_EQ(scales(scaler, "xxxxx"), std::vector<double>(5, 16));
}

TEST(LossScaler, FirstGrowthComesOneStepAfterAWindow) {
  for (const std::int64_t window : {1, 2, 5, 1000}) {
    const LossScaler scaler(small(4, window));
    std::vector<double> expected(static_cast<std::size_t>(window), 16);
    expected.push_back(32);
    EXPECT_EQ(scales(scaler, std::string(expected.size(), '.')), expected);
  }
}

TEST(LossScaler, StaticScaleAndNoneStay) {
  LossScalerOptions options;
  options.static_scale = 128;
  LossScaler fixed(options);
  EXPECT_EQ(scales(fixed, "x.x"), std::vector<double>(3, 128));
  EXPECT_FALSE(fixed.dynamic());
  LossScaler none;
  EXPECT_EQ(scales(none, "x.x"), std::vector<double>(3, 1));
}

TEST(LossScaler, ResumesAtEveryPoint) {
  const std::string history = "....xx.x....x....";
  const LossScaler scaler(small(4));
  const std::vector<double> expected = scales(scaler, history);
  for (std::size_t cut = 0; cut <= history.size(); ++cut) {
    LossScaler::State before = scaler.initial();
    std::vector<double> found = scales(scaler, before, history.substr(0, cut));
    LossScaler::State after = before;
    for (const double scale : scales(LossScaler(small(4)), after, history.substr(cut)))
      found.push_back(scale);
    EXPECT_EQ(found, expected) << cut;
  }
}

TEST(LossScaler, RefusesOptionsOutOfRange) {
  LossScalerOptions window = small(4, 0), minimum = small(4), power = small(4000), negative;
  minimum.min_scale = 0;
  negative.static_scale = -1;
  for (const LossScalerOptions& options : {window, minimum, power, negative})
    EXPECT_THROW(LossScaler{options}, Error);
  EXPECT_THROW(LossScaler::require_valid({.scale = 0}), Error);
}

TEST(Clip, BringsTheNormToItsMaximum) {
  EXPECT_EQ(clip_coefficient(5.0, 0.0), 1.0);
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_coefficient(0.0, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_coefficient(5.0, 1.0), 1.0 / 5.000001);
  // Just below the maximum the 1e-6 already clips, as in DeepSpeed.
  EXPECT_LT(clip_coefficient(1.0, 1.0), 1.0);
  EXPECT_FLOAT_EQ(gradient_factor(5.0, 1.0, 1024.0), static_cast<float>(1.0 / 5.000001 / 1024.0));
}

}  // namespace
}  // namespace zero3d
