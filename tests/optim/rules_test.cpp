// Each rule beside the torch or DeepSpeed formula written plainly in double, over several steps and
// with what else its parameters ask for.
#include <gtest/gtest.h>

#include <functional>

#include "zero3d/core/error.h"
#include "zero3d/optim/make_rule.h"
#include "zero3d/tests/optim/rig.h"

namespace zero3d {
namespace {

using test::Parameter;
using test::random_values;
using test::Rig;

struct Variant {
  std::string type;
  ParameterMap params;
  bool offloaded = false;
};

OptimizerRules rules_of(const Variant& variant) {
  OptimizerChoice choice;
  choice.type = variant.type;
  choice.params = variant.params;
  choice.offloaded = variant.offloaded;
  return make_update_rule(choice);
}

/// One element's reference: its weight and whatever it keeps, advanced by one step.
struct Element {
  double w = 0;
  double a = 0, b = 0, c = 0;
};
using Reference = std::function<void(Element&, const GroupSettings&, double gradient, int step)>;

constexpr int kSteps = 20;
constexpr float kFactor = 0.73f;

void expect_follows(const Variant& variant, const Reference& reference, double tolerance = 2e-6) {
  const OptimizerRules rules = rules_of(variant);
  const std::int64_t numel = 1031;
  Rig rig(2);
  std::vector<float> initial = random_values(numel, 1);
  for (float& value : initial) value += value < 0 ? -0.1f : 0.1f;
  Parameter parameter(rig, *rules.rule, initial);
  std::vector<Element> elements;
  for (const float value : initial) {
    Element element;
    element.w = value;
    if (!rules.rule->states().empty()) element.a = rules.rule->states()[0].initial;
    elements.push_back(element);
  }
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradient = random_values(numel, static_cast<unsigned>(10 + step));
    parameter.set_gradient(gradient);
    test::step(rig, *rules.rule, rules.settings, step, parameter.slice(), kFactor);
    for (std::size_t i = 0; i < elements.size(); ++i)
      reference(elements[i], rules.settings, static_cast<double>(gradient[i]) * kFactor, step);
  }
  const std::vector<float> found = parameter.master();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const double size =
        std::max(std::abs(elements[i].w), std::abs(static_cast<double>(initial[i])));
    ASSERT_NEAR(found[i], elements[i].w, tolerance * size) << variant.type << " element " << i;
  }
}

TEST(Adam, WithoutBiasCorrection) {
  expect_follows({"Adam", {{"bias_correction", false}, {"weight_decay", 0.1}}},
                 [](Element& e, const GroupSettings& s, double g, int) {
                   e.a = s.beta1 * e.a + (1 - s.beta1) * g;
                   e.b = s.beta2 * e.b + (1 - s.beta2) * g * g;
                   e.w -= s.lr * (e.a / (std::sqrt(e.b) + s.eps) + s.weight_decay * e.w);
                 });
}

TEST(Lion, MovesBySignAndDecaysDecoupled) {
  const ParameterMap params = {
      {"lr", 1e-3}, {"betas", std::vector<double>{0.9, 0.99}}, {"weight_decay", 0.1}};
  expect_follows({"Lion", params}, [](Element& e, const GroupSettings& s, double g, int) {
    const double c = s.beta1 * e.a + (1 - s.beta1) * g;
    e.w = e.w * (1 - s.lr * s.weight_decay) - (c < 0 ? -s.lr : s.lr);
    e.a = s.beta2 * e.a + (1 - s.beta2) * g;
  });
}

TEST(Lion, SignOfZeroIsPositive) {
  const OptimizerRules rules = rules_of({"Lion", {{"lr", 0.125}}});
  Rig rig;
  Parameter parameter(rig, *rules.rule, std::vector<float>(37, 1.0f));
  for (const float zero : {0.0f, -0.0f}) {
    parameter.set_gradient(std::vector<float>(37, zero));
    test::step(rig, *rules.rule, rules.settings, 1, parameter.slice());
  }
  EXPECT_EQ(parameter.master(), std::vector<float>(37, 0.75f));
}

TEST(Adagrad, OnTheDeviceAsTorchHasIt) {
  const ParameterMap params = {
      {"lr", 0.01}, {"weight_decay", 0.01}, {"lr_decay", 0.1}, {"initial_accumulator_value", 0.5}};
  expect_follows({"Adagrad", params}, [](Element& e, const GroupSettings& s, double g, int t) {
    g += s.weight_decay * e.w;
    e.a += g * g;
    e.w -= s.lr / (1 + (t - 1) * 0.1) * g / (std::sqrt(e.a) + s.eps);
  });
}

TEST(Adagrad, OffloadedAsDeepSpeedsCpuClassHasIt) {
  const Variant variant = {"Adagrad", {{"lr", 0.01}, {"weight_decay", 0.01}}, true};
  expect_follows(variant, [](Element& e, const GroupSettings& s, double g, int) {
    g += s.weight_decay * e.w;
    e.a += g * g;
    e.w -= s.lr * g / (std::sqrt(e.a) + s.eps);
  });
  EXPECT_EQ(rules_of(variant).rule->states()[0].name, "exp_avg_sq");
  EXPECT_THROW(rules_of({"Adagrad", {{"lr_decay", 0.1}}, true}), ConfigError);
}

Reference sgd_reference(double momentum, double dampening, bool nesterov) {
  return [=](Element& e, const GroupSettings& s, double g, int t) {
    g += s.weight_decay * e.w;
    if (momentum != 0) {
      e.a = t == 1 ? g : momentum * e.a + (1 - dampening) * g;
      g = nesterov ? g + momentum * e.a : e.a;
    }
    e.w -= s.lr * g;
  };
}

TEST(Sgd, AsTorchHasIt) {
  const ParameterMap base = {{"lr", 1e-3}, {"weight_decay", 0.01}};
  expect_follows({"SGD", base}, sgd_reference(0, 0, false));
  ParameterMap momentum = base;
  momentum["momentum"] = 0.9;
  expect_follows({"SGD", momentum}, sgd_reference(0.9, 0, false));
  ParameterMap dampened = momentum;
  dampened["dampening"] = 0.3;
  expect_follows({"SGD", dampened}, sgd_reference(0.9, 0.3, false));
  ParameterMap nesterov = momentum;
  nesterov["nesterov"] = true;
  expect_follows({"SGD", nesterov}, sgd_reference(0.9, 0, true));
  nesterov["dampening"] = 0.3;
  EXPECT_THROW(rules_of({"SGD", nesterov}), ConfigError);
}

TEST(Rmsprop, AsTorchHasIt) {
  for (const bool centered : {false, true})
    for (const double momentum : {0.0, 0.9}) {
      // The first centred steps divide by the root of a difference of near equals, so alpha is
      // modest.
      const double alpha = centered ? 0.5 : 0.99;
      const Variant variant = {"RMSprop",
                               {{"lr", 1e-4},
                                {"alpha", alpha},
                                {"eps", 0.1},
                                {"weight_decay", 0.01},
                                {"momentum", momentum},
                                {"centered", centered}}};
      EXPECT_EQ(rules_of(variant).rule->states().size(), 1u + centered + (momentum != 0));
      expect_follows(variant, [=](Element& e, const GroupSettings& s, double g, int) {
        g += s.weight_decay * e.w;
        e.a = alpha * e.a + (1 - alpha) * g * g;
        double variance = e.a;
        if (centered) {
          e.c = alpha * e.c + (1 - alpha) * g;
          variance -= e.c * e.c;
        }
        double step = g / (std::sqrt(variance) + s.eps);
        if (momentum != 0) step = e.b = momentum * e.b + step;
        e.w -= s.lr * step;
      });
    }
}

TEST(Rules, KeepStatesInBf16WhereTheyMay) {
  const OptimizerRules rules = rules_of({"Lion", {{"fp32_optimizer_states", false}}, true});
  EXPECT_TRUE(rules.bf16_states);
  Rig rig;
  Parameter parameter(rig, *rules.rule, {1.0f}, {.state = DType::bf16});
  parameter.set_gradient({1.0f});
  test::step(rig, *rules.rule, rules.settings, 1, parameter.slice());
  EXPECT_EQ(parameter.state(0)[0], to_float(to_bf16(0.001f)));
}

}  // namespace
}  // namespace zero3d
