// The learning rate that each update uses, against DeepSpeed's recorded tables, and the edges of
// every schedule.
#include "zero3d/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"

namespace zero3d {
namespace {

std::vector<GroupSettings> groups_with(std::initializer_list<double> rates) {
  std::vector<GroupSettings> groups;
  for (const double rate : rates) {
    groups.emplace_back();
    groups.back().lr = rate;
  }
  return groups;
}

/// The settings of group `group` for `count` updates.
std::vector<GroupSettings> settings(const std::string& type, const ParameterMap& params,
                                    std::int64_t count,
                                    std::vector<GroupSettings> groups = groups_with({1.0, 1.0}),
                                    std::size_t group = 0) {
  const auto schedule = make_schedule(type, params, groups);
  std::vector<GroupSettings> found;
  for (std::int64_t applied = 0; applied < count; ++applied) {
    schedule->apply(applied, groups);
    found.push_back(groups[group]);
  }
  return found;
}

void expect_rates(const std::string& type, const ParameterMap& params,
                  const std::vector<double>& expected,
                  std::vector<GroupSettings> groups = groups_with({1.0, 1.0})) {
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto found =
        settings(type, params, static_cast<std::int64_t>(expected.size()), groups, group);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found[i].lr, expected[i], 1e-9)
          << type << " update " << i + 1 << " group " << group;
  }
}

using Integer = std::int64_t;

TEST(Schedule, WarmupLR) {
  const ParameterMap log = {
      {"warmup_min_lr", 0.0}, {"warmup_max_lr", 1.0}, {"warmup_num_steps", Integer{4}}};
  expect_rates("WarmupLR", log, {0, 0, 0.5, 0.7924812503605781, 1, 1, 1, 1});
  ParameterMap linear = log;
  linear["warmup_type"] = std::string("linear");
  expect_rates("WarmupLR", linear, {0, 0, .25, .5, .75, 1, 1, 1});
  linear["warmup_num_steps"] = Integer{1};
  expect_rates("WarmupLR", linear, {0, 0, .5, 1, 1});
  // Without a maximum: each group's own rate.
  const auto own =
      settings("WarmupLR", {{"warmup_num_steps", Integer{2}}}, 5, groups_with({0.1, 0.3}), 1);
  EXPECT_DOUBLE_EQ(own[4].lr, 0.3);
}

TEST(Schedule, WarmupDecayLR) {
  const ParameterMap params = {{"warmup_max_lr", 1.0},
                               {"warmup_num_steps", Integer{4}},
                               {"total_num_steps", Integer{8}},
                               {"warmup_type", std::string("linear")}};
  expect_rates("WarmupDecayLR", params, {0, 0, .25, .5, .75, 1, .75, .5, .25, 0, 0});
  ParameterMap shorter = params;
  shorter["warmup_num_steps"] = Integer{2};
  shorter["total_num_steps"] = Integer{6};
  expect_rates("WarmupDecayLR", shorter, {0, 0, .5, 1, .75, .5, .25, 0, 0, 0});
  ParameterMap defaults = params;
  defaults.erase("warmup_max_lr");
  EXPECT_DOUBLE_EQ(settings("WarmupDecayLR", defaults, 6)[5].lr, 0.001);
}

TEST(Schedule, WarmupCosineLR) {
  const ParameterMap params = {{"warmup_num_steps", Integer{4}},
                               {"total_num_steps", Integer{8}},
                               {"cos_min_ratio", 0.1},
                               {"warmup_min_ratio", 0.2},
                               {"warmup_type", std::string("linear")}};
  expect_rates("WarmupCosineLR", params,
               {0, .02, .04, .06, .08, .08681980515339464, .055, .02318019484660536, .01, .01, .01},
               groups_with({0.1}));
  const ParameterMap shorter = {{"warmup_num_steps", Integer{2}},
                                {"total_num_steps", Integer{6}},
                                {"cos_min_ratio", 0.1},
                                {"warmup_type", std::string("linear")}};
  expect_rates("WarmupCosineLR", shorter,
               {0, 0, .5, .8681980515339464, .55, .2318019484660536, .1, .1, .1, .1});
}

TEST(Schedule, LRRangeTest) {
  ParameterMap params = {{"lr_range_test_min_lr", 0.1}, {"lr_range_test_step_size", Integer{2}}};
  expect_rates("LRRangeTest", params, {.1, .15, .2, .25, .3});
  params["lr_range_test_staircase"] = true;
  expect_rates("LRRangeTest", params, {.1, .1, .2, .2, .3});
}

TEST(Schedule, OneCycle) {
  ParameterMap params = {
      {"cycle_min_lr", 0.1}, {"cycle_max_lr", 1.1}, {"cycle_first_step_size", Integer{5}}};
  expect_rates("OneCycle", params, {.1, .3, .5, .7, .9, 1.1, .9, .7, .5, .3, .1, .1, .1});
  params["decay_step_size"] = Integer{2};
  params["decay_lr_rate"] = 1.0;
  params["decay_mom_rate"] = 1.0;
  expect_rates("OneCycle", params, {.1, .3, .5, .7, .9, 1.1, .9, .7, .5, .3, .1, .2 / 3, .05});
  const auto found = settings("OneCycle", params, 13);
  const double momenta[] = {.8, .88, .86, .84, .82, .8, .82, .84, .86, .88, .9, 1.35, 1.8};
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i].beta1, momenta[i], 1e-9) << i;
    EXPECT_EQ(found[i].beta2, 0.99) << i;
  }
}

TEST(Schedule, OneCycleWithUnevenLegsAndStairs) {
  ParameterMap params = {
      {"cycle_min_lr", 0.0}, {"cycle_max_lr", 1.0}, {"cycle_first_step_size", Integer{4}}};
  ParameterMap uneven = params;
  uneven["cycle_second_step_size"] = Integer{2};
  expect_rates("OneCycle", uneven, {0, .25, .5, .75, 1, .5, 0, 0});
  uneven["cycle_second_step_size"] = Integer{0};
  expect_rates("OneCycle", uneven, {0, .25, .5, .75, 0, 0});
  params["cycle_first_stair_count"] = Integer{2};
  expect_rates("OneCycle", params, {0, 0, .5, .5, 1, .5, .5, 0, 0});
  params["cycle_second_step_size"] = Integer{8};
  params["cycle_second_stair_count"] = Integer{4};
  expect_rates("OneCycle", params, {0, 0, .5, .5, 1, .75, .75, .5, .5, .25, .25, 0, 0, 0});
}

TEST(Schedule, OneCycleLeavesBetasAloneWhenTold) {
  ParameterMap params = {{"cycle_min_lr", 0.1}, {"cycle_max_lr", 1.1}, {"cycle_momentum", false}};
  EXPECT_EQ(settings("OneCycle", params, 1)[0].beta2, 0.999);
  params["cycle_momentum"] = true;
  std::vector<GroupSettings> groups(1);
  const auto schedule = make_schedule("OneCycle", params, groups, false);
  ASSERT_EQ(schedule->warnings().size(), 1u);
  EXPECT_NE(schedule->warnings()[0].find("scheduler.params.cycle_momentum: "), std::string::npos);
  schedule->apply(3, groups);
  EXPECT_EQ(groups[0].beta1, 0.9);
}

TEST(Schedule, SaysWhatIsNotAsItSeems) {
  std::vector<GroupSettings> groups(1);
  const auto warnings = [&](const ParameterMap& params) {
    return make_schedule("WarmupDecayLR", params, groups)->warnings();
  };
  EXPECT_TRUE(warnings({{"total_num_steps", Integer{2000}}}).empty());
  const auto early = warnings({{"total_num_steps", Integer{10}}});
  ASSERT_EQ(early.size(), 1u);
  EXPECT_NE(early[0].find("10 is below the 1000 updates of warm-up"), std::string::npos);
  const auto kind =
      warnings({{"total_num_steps", Integer{2000}}, {"warmup_type", std::string("cosine")}});
  ASSERT_EQ(kind.size(), 1u);
  EXPECT_NE(kind[0].find("\"cosine\" is neither"), std::string::npos);
}

TEST(Schedule, PlainOnesFollowTheHuggingFaceFormulas) {
  expect_rates("constant", {}, {1, 1, 1});
  const ParameterMap warm = {{"warmup_num_steps", Integer{2}}};
  expect_rates("constant_with_warmup", warm, {0, .5, 1, 1});
  const ParameterMap params = {{"warmup_num_steps", Integer{2}}, {"total_num_steps", Integer{6}}};
  expect_rates("linear", params, {0, .5, 1, .75, .5, .25, 0, 0});
  expect_rates("cosine", params,
               {0, .5, 1, (1 + std::sqrt(.5)) / 2, .5, (1 - std::sqrt(.5)) / 2, 0, 0});
}

TEST(Schedule, ListsGiveEachGroupItsRate) {
  const ParameterMap params = {{"warmup_min_lr", std::vector<double>{0.1, 0.2}},
                               {"warmup_max_lr", std::vector<double>{1.0, 2.0}},
                               {"warmup_num_steps", Integer{2}}};
  EXPECT_DOUBLE_EQ(settings("WarmupLR", params, 9)[0].lr, 0.1);
  EXPECT_DOUBLE_EQ(settings("WarmupLR", params, 9, groups_with({1, 1}), 1)[0].lr, 0.2);
  EXPECT_DOUBLE_EQ(settings("WarmupLR", params, 9, groups_with({1, 1}), 1)[8].lr, 2.0);
  EXPECT_THROW(settings("WarmupLR", params, 1, groups_with({1, 1, 1})), ConfigError);
}

TEST(Schedule, EdgesGiveFiniteValuesOrClearErrors) {
  set_log_sink([](LogLevel, std::string_view) {});
  for (const char* type : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
    for (const char* kind : {"log", "linear"})
      for (const Integer warmup : {1, 2, 6, 9}) {
        ParameterMap params = {{"warmup_num_steps", warmup}, {"warmup_type", std::string(kind)}};
        if (std::string(type) != "WarmupLR") params["total_num_steps"] = Integer{6};
        for (const GroupSettings& group : settings(type, params, 12)) {
          EXPECT_TRUE(std::isfinite(group.lr)) << type << " " << warmup;
          EXPECT_GE(group.lr, 0) << type << " " << warmup;
        }
      }
  for (const ParameterValue& steps : {ParameterValue(Integer{0}), ParameterValue(Integer{-1}),
                                      ParameterValue(2.0), ParameterValue(std::string("auto"))})
    EXPECT_THROW(settings("WarmupLR", {{"warmup_num_steps", steps}}, 1), ConfigError);
  EXPECT_THROW(settings("WarmupDecayLR", {}, 1), ConfigError);
  EXPECT_THROW(settings("WarmupDecayLR", {{"total_num_steps", std::string("auto")}}, 1),
               ConfigError);
  EXPECT_THROW(settings("OneCycle", {{"cycle_min_lr", 0.1}}, 1), ConfigError);
  EXPECT_THROW(settings("LRRangeTest", {{"lr_range_test_step_size", Integer{0}}}, 1), ConfigError);
  EXPECT_THROW(settings("linear", {}, 1), ConfigError);
  const ParameterMap all_warmup = {{"warmup_num_steps", Integer{6}},
                                   {"total_num_steps", Integer{6}}};
  EXPECT_EQ(settings("cosine", all_warmup, 8)[7].lr, 0);
  set_log_sink({});
}

TEST(Schedule, UnknownNamesAreErrorsThatHelp) {
  const auto message_of = [](const std::string& type, const ParameterMap& params) -> std::string {
    std::vector<GroupSettings> groups(1);
    try {
      make_schedule(type, params, groups);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message_of("warmuplr", {}).find("WarmupLR"), std::string::npos);
  const std::string misspelt = message_of("WarmupLR", {{"warmup_num_step", Integer{4}}});
  EXPECT_NE(misspelt.find("scheduler.params.warmup_num_step"), std::string::npos) << misspelt;
  EXPECT_NE(misspelt.find("warmup_num_steps"), std::string::npos) << misspelt;
}

TEST(Schedule, CountsAsDeepSpeedsCheckpointsDo) {
  EXPECT_EQ(last_batch_iteration(0), -1);
  for (const std::int64_t applied : {0, 1, 17})
    EXPECT_EQ(applied_updates(last_batch_iteration(applied)), applied);
}

}  // namespace
}  // namespace zero3d
