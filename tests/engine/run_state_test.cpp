// The state of a run as text: read back it is the same, and what is not one is refused.
#include "zero3d/engine/run_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

RunState example() {
  RunState state;
  state.steps = 12;
  state.samples = 768;
  state.micro_steps = 48;
  state.optimizer_steps = 9;
  state.schedule_steps = 7;
  state.skipped_steps = 3;
  state.consecutive_skips = 1;
  state.scaler = {.scale = 1.0 / 3, .iteration = 12, .last_overflow = 11, .hysteresis = -4};
  state.data_position = std::numeric_limits<std::int64_t>::max();
  state.seed = std::numeric_limits<std::uint64_t>::max();
  return state;
}

TEST(RunState, IsAListOfNamesAndValues) {
  EXPECT_EQ(to_text(example()),
            "steps = 12\nsamples = 768\nmicro_steps = 48\noptimizer_steps = 9\n"
            "schedule_steps = 7\nskipped_steps = 3\nconsecutive_skips = 1\n"
            "scaler.scale = 0.3333333333333333\nscaler.iteration = 12\n"
            "scaler.last_overflow = 11\nscaler.hysteresis = -4\n"
            "data_position = 9223372036854775807\nseed = 18446744073709551615\n");
}

TEST(RunState, ReadBackIsTheSame) {
  EXPECT_EQ(run_state_from_text(to_text(RunState())), RunState());
  EXPECT_EQ(run_state_from_text(to_text(example())), example());
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    const auto count = [&] { return static_cast<std::int64_t>(random() >> 1); };
    RunState state{count(), count(), count(), count(), count(),
                   count(), count(), {},      count(), random()};
    state.scaler.scale = std::ldexp(static_cast<double>(random()), static_cast<int>(i) - 50);
    state.scaler.last_overflow = -1;
    EXPECT_EQ(run_state_from_text(to_text(state)), state);
  }
}

TEST(RunState, WhatIsNoStateIsRefusedByName) {
  const auto refusal = [](const std::string& from, const std::string& to) {
    std::string text = to_text(example());
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      run_state_from_text(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } cases[] = {
      {"seed = ", "seeds = ", "seed is missing"},
      {"seed = ", "more = 1\nseed = ", "there is no field more"},
      {"samples = 768\n", "samples = 768\nsamples = 768\n", "samples is there twice"},
      {"steps = 12\n", "steps = -12\n", "steps cannot be \"-12\""},
      {"steps = 12\n", "steps = 12 \n", "steps cannot be \"12 \""},
      {"steps = 12\n", "steps = \n", "steps cannot be \"\""},
      {"steps = 12\n", "steps 12\n", "found \"steps 12\""},
      {"samples = 768", "samples = 99999999999999999999", "samples cannot be"},
      {"seed = 1", "seed = -1", "seed cannot be"},
      {"0.3333333333333333", "nan", "scaler.scale cannot be \"nan\""},
      {"0.3333333333333333", "0", "positive finite scale"},
      {"0.3333333333333333", "inf", "positive finite scale"},
      {"last_overflow = 11", "last_overflow = -2", "scaler.last_overflow cannot be"},
  };
  for (const auto& [from, to, message] : cases)
    EXPECT_NE(refusal(from, to).find(message), std::string::npos) << refusal(from, to);
  EXPECT_THROW(run_state_from_text(""), Error);
}

}  // namespace
}  // namespace zero3d
