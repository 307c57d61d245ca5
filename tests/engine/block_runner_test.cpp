// What blocks are told by who runs them, and what becomes of gradients that they do not write.
#include <gtest/gtest.h>

#include <map>

#include "zero3d/core/text.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

std::string json_of(int stage) {
  return concat(R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
                    "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": )",
                stage, R"(, "stage3_param_persistence_threshold": 0}})");
}

/// A tied parameter has the gradients of the users that give one; what the last to come does not
/// write is not made zero.
TEST(BlockRunner, AUserOfATiedParameterThatTakesNoPartLeavesItsGradientAlone) {
  for (const bool adds : {false, true}) {
    for (const int idle : {0, 1, 2}) {
      const auto blocks = [&](int) {
        std::vector<ProbeBlockSpec> all;
        for (int block = 0; block < 3; ++block) {
          const float c = static_cast<float>(1 << block);
          ProbeParameter tied =
              probe_parameter("tied", Shape{1500}, [c](const ProbeClock&) { return c; });
          if (block == idle) tied.gradient = {};
          tied.spec.adds_gradient = adds;
          all.push_back({{tied}});
        }
        return all;
      };
      for (int stage = 0; stage <= 3; ++stage) {
        RunOptions options = probe_options(blocks, 2);
        options.steps = 1;
        const RunResult result = run_engine(json_of(stage), options);
        for (const float found : result.gradients[0].at("tied"))
          ASSERT_EQ(found, static_cast<float>(7 - (1 << idle)))
              << "adds " << adds << ", without block " << idle << ", stage " << stage;
      }
    }
  }
}

/// Remembers what it is told in backward.
class Listener final : public Block {
 public:
  explicit Listener(int index, std::map<int, bool>& wants) : index_(index), wants_(wants) {}
  std::string name() const override { return concat("listener ", index_); }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = concat("p", index_);
    spec.shape = Shape{10};
    spec.initial = constant_values(1.0f);
    return {spec};
  }
  Values forward(BlockContext& context, Values, Saved&) override { return ones(context); }
  Values backward_inputs(BlockContext& context, Values, Saved&) override {
    if (!context.is_dry_run()) wants_[index_] = context.wants_input_gradient();
    return context.wants_input_gradient() ? ones(context) : Values();
  }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  static Values ones(BlockContext& context) {
    Values values;
    values.push_back(context.allocate(DType::f32, Shape{2}));
    kernels::fill(context.stream(), values[0], 1.0f);
    return values;
  }

  int index_;
  std::map<int, bool>& wants_;
};

class Listeners final : public Module {
 public:
  explicit Listeners(std::map<int, bool>& wants) {
    for (int i = 0; i < 4; ++i) blocks_.push_back(std::make_unique<Listener>(i, wants));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

TEST(BlockRunner, AsksForInputGradientsAboveTheFirstBlockThatTrainsOnly) {
  for (const int frozen : {0, 2}) {
    std::map<int, bool> wants;
    RunOptions options = probe_options(
        {1}, [](int, const Moment&) { return 1.0f; }, 1);
    options.make_module = [&](int) { return std::make_unique<Listeners>(wants); };
    options.before_forward = {};
    options.engine.adjust = [frozen](ParameterSpec& spec) {
      spec.frozen = spec.name < concat("p", frozen);
    };
    run_engine(json_of(0), options);
    std::map<int, bool> expected;
    for (int block = frozen; block < 4; ++block) expected[block] = block > frozen;
    EXPECT_EQ(wants, expected);
  }
}

}  // namespace
}  // namespace zero3d::test
