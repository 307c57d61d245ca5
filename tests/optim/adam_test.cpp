// Adam: who decays how, one step count for all parts of a parameter, and a double oracle over a
// hundred steps.
#include "zero3d/optim/adam.h"

#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/optim/make_rule.h"
#include "zero3d/tests/optim/rig.h"

namespace zero3d {
namespace {

using test::Kinds;
using test::Parameter;
using test::random_values;
using test::Rig;

OptimizerRules rules_of(const std::string& type, ParameterMap params) {
  OptimizerChoice choice;
  choice.type = type;
  choice.params = std::move(params);
  return make_update_rule(choice);
}

std::vector<float> after_three_steps(const OptimizerRules& rules) {
  Rig rig;
  Parameter parameter(rig, *rules.rule, {1.0f});
  std::vector<float> values;
  int number = 0;
  for (const float gradient : {0.1f, -0.2f, 0.3f}) {
    parameter.set_gradient({gradient});
    test::step(rig, *rules.rule, rules.settings, ++number, parameter.slice());
    values.push_back(parameter.master()[0]);
  }
  return values;
}

void expect_values(const std::vector<float>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1.5e-6) << i;
}

TEST(Adam, TypeAndModeDecideHowWeightsDecay) {
  const std::vector<double> decoupled = {0.890000, 0.917710, 0.874209};
  const std::vector<double> classic = {0.900000, 0.877170, 0.813161};
  const ParameterMap params = {{"lr", 0.1}, {"weight_decay", 0.1}};
  ParameterMap l2 = params;
  l2["adam_w_mode"] = false;
  expect_values(after_three_steps(rules_of("AdamW", params)), decoupled);
  expect_values(after_three_steps(rules_of("Adam", params)), decoupled);
  expect_values(after_three_steps(rules_of("Adam", l2)), classic);
  EXPECT_NE(rules_of("Adam", l2).rule->description().find("classic"), std::string::npos);
  EXPECT_NE(rules_of("Adam", params).rule->description().find("decoupled"), std::string::npos);
  EXPECT_NE(Adam({.isa = kernels::Isa::scalar}).description().find("scalar"), std::string::npos);

  const OptimizerRules contradictory = rules_of("AdamW", l2);
  expect_values(after_three_steps(contradictory), decoupled);
  ASSERT_EQ(contradictory.warnings.size(), 1u);
  EXPECT_NE(contradictory.warnings[0].find("adam_w_mode"), std::string::npos);
}

TEST(Adam, WithoutDecayAllModesAgree) {
  for (const bool decoupled : {false, true}) {
    const ParameterMap params = {{"lr", 0.1}, {"adam_w_mode", decoupled}};
    expect_values(after_three_steps(rules_of("Adam", params)), {0.900000, 0.936610, 0.902286});
  }
}

TEST(Adam, PartsOfAParameterShareOneStepCount) {
  const OptimizerRules rules = rules_of("AdamW", {{"lr", 0.1}});
  for (const std::int64_t part : {7, 8, 24}) {
    Rig rig;
    Parameter parameter(rig, *rules.rule, std::vector<float>(24, 1.0f));
    int number = 0;
    for (const float gradient : {0.1f, -0.2f, 0.3f}) {
      parameter.set_gradient(std::vector<float>(24, gradient));
      ++number;
      for (std::int64_t begin = 0; begin < 24; begin += part)
        test::step(rig, *rules.rule, rules.settings, number,
                   parameter.part(begin, std::min<std::int64_t>(part, 24 - begin)));
    }
    const std::vector<float> master = parameter.master();
    for (const float value : master) {
      EXPECT_NEAR(value, 0.9022863, 1e-6);
      EXPECT_EQ(value, master[0]);
    }
  }
}

/// The textbook formula in double, bias corrections and all.
struct Oracle {
  double w, m = 0, v = 0;
  void step(const GroupSettings& s, bool decoupled, double gradient, int t) {
    const double g = decoupled ? gradient : gradient + s.weight_decay * w;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double root = std::sqrt(v / (1 - std::pow(s.beta2, t))) + s.eps;
    const double decay = decoupled ? s.weight_decay * w : 0;
    w -= s.lr * (m / (1 - std::pow(s.beta1, t)) / root + decay);
  }
};

TEST(Adam, StaysNearADoubleOracleForAHundredSteps) {
  for (const bool decoupled : {false, true})
    for (const double factor : {1.0, 0.37}) {
      const OptimizerRules rules =
          rules_of("Adam", {{"lr", 1e-3}, {"weight_decay", 0.01}, {"adam_w_mode", decoupled}});
      const std::int64_t numel = 5003;
      // Weights of at least 0.1: one that crosses zero keeps the rounding of its larger past.
      std::vector<float> initial = random_values(numel, 1);
      for (float& value : initial) value += value < 0 ? -0.1f : 0.1f;
      Rig rig(2);
      Parameter parameter(rig, *rules.rule, initial);
      std::vector<Oracle> oracle;
      for (const float value : initial) oracle.push_back({value});
      for (int t = 1; t <= 100; ++t) {
        // Classic decay adds to the gradient: with gradients as small as wd * w their sum may
        // cancel, and a tiny sum is ill-conditioned in any fp32.
        const std::vector<float> gradient =
            random_values(numel, static_cast<unsigned>(100 + t), decoupled ? 0.01 : 1.0);
        parameter.set_gradient(gradient);
        test::step(rig, *rules.rule, rules.settings, t, parameter.slice(),
                   static_cast<float>(factor));
        for (std::size_t i = 0; i < oracle.size(); ++i)
          oracle[i].step(rules.settings, decoupled,
                         static_cast<double>(gradient[i]) * static_cast<float>(factor), t);
      }
      const std::vector<float> master = parameter.master();
      double worst = 0;
      for (std::size_t i = 0; i < oracle.size(); ++i) {
        const double size =
            std::max(std::abs(oracle[i].w), std::abs(static_cast<double>(initial[i])));
        worst = std::max(worst, std::abs(master[i] - oracle[i].w) / size);
      }
      RecordProperty("worst", concat(worst));
      EXPECT_LT(worst, 2e-6) << "decoupled " << decoupled;
    }
}

TEST(Adam, WritesTheRoundedMasterToTheCopy) {
  for (const DType copy : {DType::bf16, DType::f16, DType::f32})
    for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
      const Adam rule({});
      Rig rig;
      Parameter parameter(rig, rule, random_values(1027, 5),
                          {.gradient = gradient, .has_copy = true, .copy = copy});
      parameter.set_gradient(random_values(1027, 6));
      test::step(rig, rule, {}, 1, parameter.slice());
      const std::vector<float> master = parameter.master(), rounded = parameter.copy();
      for (std::size_t i = 0; i < master.size(); ++i) {
        const float expected = copy == DType::bf16  ? to_float(to_bf16(master[i]))
                               : copy == DType::f16 ? to_float(to_f16(master[i]))
                                                    : master[i];
        ASSERT_EQ(rounded[i], expected) << i;
      }
    }
}

TEST(Adam, SixteenBitMastersAndMomentsRoundOncePerStep) {
  const Adam rule({});
  Rig rig;
  const std::vector<float> initial = random_values(257, 7), gradient = random_values(257, 8);
  Parameter wide(rig, rule, initial);
  Parameter narrow(
      rig, rule, initial,
      {.master = DType::bf16, .state = DType::bf16, .has_copy = true, .copy = DType::bf16});
  // Both start from what bf16 can hold.
  rig.write(wide.slice().master, narrow.master());
  wide.set_gradient(gradient);
  narrow.set_gradient(gradient);
  test::step(rig, rule, {}, 1, wide.slice());
  test::step(rig, rule, {}, 1, narrow.slice());
  const auto expect_rounded = [](const std::vector<float>& found, const std::vector<float>& full) {
    for (std::size_t i = 0; i < full.size(); ++i)
      ASSERT_EQ(found[i], to_float(to_bf16(full[i]))) << i;
  };
  expect_rounded(narrow.master(), wide.master());
  expect_rounded(narrow.copy(), wide.master());
  expect_rounded(narrow.state(0), wide.state(0));
  expect_rounded(narrow.state(1), wide.state(1));
}

TEST(Adam, RefusesSettingsThatWouldGiveNaN) {
  const Adam rule({});
  Rig rig;
  Parameter parameter(rig, rule, {1.0f});
  GroupSettings past_one;
  past_one.beta1 = 1.35;
  EXPECT_THROW(test::step(rig, rule, past_one, 1, parameter.slice()), Error);
  EXPECT_THROW(test::step(rig, rule, {}, 0, parameter.slice()), Error);
  GroupSettings infinite;
  infinite.lr = INFINITY;
  EXPECT_THROW(test::step(rig, rule, infinite, 1, parameter.slice()), Error);
}

}  // namespace
}  // namespace zero3d
