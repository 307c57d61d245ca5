// Optimizer sections: names, parameters and defaults as DeepSpeed has them, and refusals that help.
#include "zero3d/optim/make_rule.h"

#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/optim/known_types.h"

namespace zero3d {
namespace {

OptimizerRules make(const std::string& type, const ParameterMap& params = {},
                    bool offloaded = false) {
  OptimizerChoice choice;
  choice.type = type;
  choice.params = params;
  choice.offloaded = offloaded;
  return make_update_rule(choice);
}

std::string refusal(const std::string& type, const ParameterMap& params = {}) {
  try {
    make(type, params);
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << type << " was accepted";
  return "";
}

TEST(MakeRule, NamesAreCaseInsensitiveWhereDeepSpeedsAre) {
  for (const char* type : {"adam", "ADAMW", "AdaGrad", "LION", "lamb", "Lamb", "muon"})
    EXPECT_NE(make(type).rule, nullptr) << type;
  for (const char* type : {"sgd", "rmsprop", "RMSProp", "OneBitAdam", "NAdam", ""})
    EXPECT_NE(refusal(type).find("unknown optimizer"), std::string::npos) << type;
  EXPECT_NE(refusal("sgd").find("\"SGD\""), std::string::npos);
  for (const std::string& type : optimizer_types()) {
    const OptimizerRules rules = make(type);
    EXPECT_EQ(rules.rule->name(), type);
    EXPECT_FALSE(rules.rule->description().empty());
  }
}

TEST(MakeRule, Defaults) {
  struct Row {
    const char* type;
    double lr, beta1, beta2, eps;
    std::vector<std::string> states;
  };
  const Row rows[] = {{"Adam", 1e-3, 0.9, 0.999, 1e-8, {"exp_avg", "exp_avg_sq"}},
                      {"AdamW", 1e-3, 0.9, 0.999, 1e-8, {"exp_avg", "exp_avg_sq"}},
                      {"Adagrad", 1e-2, 0.9, 0.999, 1e-10, {"sum"}},
                      {"Lion", 1e-3, 0.9, 0.999, 1e-8, {"exp_avg"}},
                      {"Lamb", 1e-3, 0.9, 0.999, 1e-8, {"exp_avg", "exp_avg_sq"}},
                      {"SGD", 1e-3, 0.9, 0.999, 1e-8, {}},
                      {"RMSprop", 1e-2, 0.9, 0.999, 1e-8, {"square_avg"}}};
  for (const Row& row : rows) {
    const OptimizerRules rules = make(row.type);
    EXPECT_EQ(rules.settings.lr, row.lr) << row.type;
    EXPECT_EQ(rules.settings.beta1, row.beta1) << row.type;
    EXPECT_EQ(rules.settings.beta2, row.beta2) << row.type;
    EXPECT_EQ(rules.settings.eps, row.eps) << row.type;
    EXPECT_EQ(rules.settings.weight_decay, 0) << row.type;
    EXPECT_EQ(rules.aux_rule, nullptr) << row.type;
    std::vector<std::string> states;
    for (const StateSpec& state : rules.rule->states()) states.push_back(state.name);
    EXPECT_EQ(states, row.states) << row.type;
  }
  EXPECT_EQ(make("AdamW", {{"torch_adam", true}}).settings.weight_decay, 1e-2);
  EXPECT_EQ(make("Adam", {{"torch_adam", true}, {"adam_w_mode", false}}).settings.weight_decay, 0);
}

TEST(MakeRule, MuonHasTwoHalves) {
  const OptimizerRules defaults = make("Muon");
  EXPECT_EQ(defaults.settings.lr, 0.02);
  EXPECT_EQ(defaults.settings.momentum, 0.95);
  ASSERT_NE(defaults.aux_rule, nullptr);
  EXPECT_EQ(defaults.aux_settings.lr, 3e-4);
  EXPECT_EQ(defaults.aux_settings.beta1, 0.9);
  EXPECT_EQ(defaults.aux_settings.beta2, 0.95);
  EXPECT_EQ(defaults.aux_settings.eps, 1e-10);
  const OptimizerRules both = make("Muon", {{"lr", 0.01}, {"weight_decay", 0.1}});
  EXPECT_EQ(both.settings.lr, 0.01);
  EXPECT_EQ(both.aux_settings.lr, 0.01);
  EXPECT_EQ(both.aux_settings.weight_decay, 0.1);
  const OptimizerRules apart = make("Muon", {{"lr", 0.01}, {"muon_lr", 0.03}, {"adam_lr", 0.002}});
  EXPECT_EQ(apart.settings.lr, 0.03);
  EXPECT_EQ(apart.aux_settings.lr, 0.002);
  EXPECT_EQ(make("Muon", {{"nesterov", true}}).warnings.size(), 1u);
  EXPECT_NE(refusal("Muon", {{"ns_method", std::string("cubic")}}).find("ns_method"),
            std::string::npos);
}

TEST(MakeRule, KnowsWhatIsTestedWithZero) {
  for (const char* type : {"Adam", "AdamW", "Adagrad", "Lion", "Muon"})
    EXPECT_TRUE(make(type).tested_with_zero) << type;
  for (const char* type : {"SGD", "RMSprop", "Lamb"})
    EXPECT_FALSE(make(type).tested_with_zero) << type;
  for (const char* type : {"Adam", "AdamW", "Lion", "Lamb", "Muon"})
    EXPECT_TRUE(make(type).has_betas) << type;
  for (const char* type : {"SGD", "RMSprop", "Adagrad"}) EXPECT_FALSE(make(type).has_betas) << type;
}

TEST(MakeRule, RefusesWithThePathOfTheValue) {
  EXPECT_NE(refusal("Adam", {{"amsgrad", true}}).find("optimizer.params.amsgrad"),
            std::string::npos);
  EXPECT_NE(refusal("Adam", {{"max_grad_norm", 0.0}}).find("gradient_clipping"), std::string::npos);
  EXPECT_NE(refusal("Adam", {{"lr", -1.0}}).find("optimizer.params.lr"), std::string::npos);
  EXPECT_NE(refusal("Adam", {{"lr", std::string("1e-3")}}).find("expected a number"),
            std::string::npos);
  EXPECT_NE(refusal("Adam", {{"betas", std::vector<double>{0.9}}}).find("two numbers"),
            std::string::npos);
  EXPECT_NE(refusal("Adam", {{"betas", std::vector<double>{0.9, 1.0}}}).find("below 1"),
            std::string::npos);
  EXPECT_NE(refusal("Adam", {{"weigth_decay", 0.1}}).find("weight_decay"), std::string::npos);
  EXPECT_NE(refusal("Lion", {{"eps", 1e-8}}).find("no such parameter"), std::string::npos);
  EXPECT_NE(refusal("SGD", {{"nesterov", true}}).find("nesterov"), std::string::npos);
  EXPECT_NE(refusal("Lamb", {{"min_coeff", 20.0}}).find("min_coeff"), std::string::npos);
}

/// Each parameter of each type is held to its kind, also one that has no effect here; null stands
/// for a default that is no value.
TEST(MakeRule, HoldsEveryParameterToItsKind) {
  for (const KnownType& type : known_optimizers()) {
    for (const KnownParam& param : type.params) {
      SCOPED_TRACE(concat(type.name, ".", param.name));
      ParameterMap params;
      const bool torch = param.taken == Taken::by_torch;
      if (torch) params["torch_adam"] = true;
      const auto made_with = [&](const ParameterValue& value) -> std::string {
        params[std::string(param.name)] = value;
        OptimizerChoice choice;
        choice.type = type.name;
        choice.params = params;
        choice.offloaded = param.taken == Taken::offloaded;
        try {
          make_update_rule(choice);
        } catch (const ConfigError& error) {
          return error.what();
        }
        return "";
      };
      const ParameterValue wrong =
          param.kind == ParamKind::text ? ParameterValue(true) : ParameterValue(std::string("x"));
      const std::string expected = concat("expected ", describe(param.kind), ", found ");
      EXPECT_NE(made_with(wrong).find(expected), std::string::npos) << made_with(wrong);
      const std::string of_null = made_with(std::monostate());
      if (param.may_be_null()) {
        EXPECT_EQ(of_null, "");
      } else {
        EXPECT_NE(of_null.find(concat(expected, "null")), std::string::npos) << of_null;
      }
    }
  }
  EXPECT_TRUE(find_type(known_optimizers(), "SGD")->find("foreach")->may_be_null());
  EXPECT_TRUE(find_type(known_optimizers(), "Muon")->find("adam_lr")->may_be_null());
  EXPECT_FALSE(find_type(known_optimizers(), "SGD")->find("lr")->may_be_null());
}

TEST(MakeRule, StatesGoToBf16OnlyWhenAsked) {
  EXPECT_FALSE(make("AdamW").bf16_states);
  EXPECT_FALSE(make("AdamW", {{"fp32_optimizer_states", false}}).bf16_states)
      << "a device optimizer drops it";
  EXPECT_TRUE(make("AdamW", {{"fp32_optimizer_states", false}}, true).bf16_states);
  OptimizerChoice choice;
  choice.type = "AdamW";
  choice.bf16_states = true;
  EXPECT_TRUE(make_update_rule(choice).bf16_states);
}

}  // namespace
}  // namespace zero3d
