// Which settings a parameter is updated with: those of the first group that takes it, else the
// run's; no weight decay where it says so, in both halves of Muon.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

/// Values of Adam; a group may have others.
struct Values {
  double lr = 0.1, weight_decay = 0.2, beta1 = 0.8, beta2 = 0.95, eps = 0.25;
};

std::string json_of(const Values& v, int stage) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": )",
      v.lr, R"(, "weight_decay": )", v.weight_decay, R"(, "betas": [)", v.beta1, ", ", v.beta2,
      R"(], "eps": )", v.eps,
      R"(}}, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )", stage,
      "}}");
}

RunOptions options(std::vector<ParameterGroup> groups = {}) {
  RunOptions result = probe_options(
      {1500, 1500},
      [](int, const Moment& at) { return static_cast<float>(at.rank + 2 * at.step - 1); }, 2);
  result.engine.groups = std::move(groups);
  return result;
}

ParameterGroup group_of(const std::string& parameter) {
  return {.matches = [parameter](const ParameterSpec& spec) { return spec.name == parameter; }};
}

struct Override {
  const char* name;
  double Values::*run;
  std::optional<double> ParameterGroup::*group;
  double value;
};

TEST(ParameterGroups, OverrideEachSettingOfTheRun) {
  const Override overrides[] = {
      {"lr", &Values::lr, &ParameterGroup::lr, 0.05},
      {"weight_decay", &Values::weight_decay, &ParameterGroup::weight_decay, 0.4},
      {"beta1", &Values::beta1, &ParameterGroup::beta1, 0.5},
      {"beta2", &Values::beta2, &ParameterGroup::beta2, 0.7},
      {"eps", &Values::eps, &ParameterGroup::eps, 0.5}};
  for (const int stage : {0, 3}) {
    const RunResult plain = run_engine(json_of({}, stage), options());
    for (const Override& entry : overrides) {
      SCOPED_TRACE(concat(entry.name, ", stage ", stage));
      Values changed;
      changed.*entry.run = entry.value;
      const RunResult all = run_engine(json_of(changed, stage), options());
      ParameterGroup group = group_of("p1");
      group.*entry.group = entry.value;
      const RunResult one = run_engine(json_of({}, stage), options({group}));
      EXPECT_TRUE(one.state.at("p0") == plain.state.at("p0"));
      EXPECT_TRUE(one.state.at("p1") == all.state.at("p1"));
      EXPECT_FALSE(all.state.at("p1") == plain.state.at("p1"));
    }
  }
}

TEST(ParameterGroups, TheFirstThatMatchesTakesAParameter) {
  ParameterGroup first = group_of("p1");
  first.lr = 0.05;
  ParameterGroup second{.matches = [](const ParameterSpec&) { return true; }};
  second.lr = 0.0;
  RunOptions run = options({first, second});
  run.after = [](Engine& engine, int) {
    const OptimizerSetup& setup = engine.model().setup();
    const auto rate = [&](const char* name) {
      ParameterSpec spec;
      spec.name = name;
      return setup.settings(0)[static_cast<std::size_t>(setup.group_of(spec))].lr;
    };
    EXPECT_EQ(rate("p1"), 0.05);
    EXPECT_EQ(rate("p0"), 0.0);
  };
  const RunResult result = run_engine(json_of({}, 2), run);
  EXPECT_NE(ParameterState::floats(result.state.at("p1").value)[0], 1.0f);
  EXPECT_EQ(ParameterState::floats(result.state.at("p0").value)[0], 1.0f);
}

/// With gradients of zero only decay moves a parameter: by lr x decay of itself.
TEST(ParameterGroups, DecayIsLeftOutWhereAParameterSaysSoInBothHalvesOfMuon) {
  const auto blocks = [](int) {
    const auto parameter = [](const char* name, const Shape& shape, bool decay) {
      ProbeParameter made = probe_parameter(name, shape, {});
      made.spec.decay = decay;
      return made;
    };
    return std::vector<ProbeBlockSpec>{
        {{parameter("matrix", Shape{40, 50}, true), parameter("bare matrix", Shape{40, 50}, false),
          parameter("vector", Shape{50}, true), parameter("bare vector", Shape{50}, false),
          parameter("embed", Shape{20, 50}, true), parameter("bare embed", Shape{20, 50}, false)}}};
  };
  RunOptions run = probe_options(blocks, 2);
  run.steps = 1;
  const std::map<std::string, float> expected = {{"matrix", 1 - 0.125f * 0.5f}, {"bare matrix", 1},
                                                 {"vector", 1 - 0.25f * 0.5f},  {"bare vector", 1},
                                                 {"embed", 1 - 0.25f * 0.5f},   {"bare embed", 1}};
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult result = run_engine(
        concat(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Muon", "params":
                   {"muon_lr": 0.125, "adam_lr": 0.25, "weight_decay": 0.5}},
                   "zero_optimization": {"stage": )",
               stage, "}}"),
        run);
    for (const auto& [name, value] : expected) {
      for (const float found : ParameterState::floats(result.state.at(name).value))
        ASSERT_EQ(found, value) << name << ", stage " << stage;
    }
  }
}

}  // namespace
}  // namespace zero3d::test
