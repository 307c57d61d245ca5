// A user's module on meshes with a tensor-parallel axis, pipelines too: parameters that it cuts,
// and those of which every rank has a copy, train to the bits of one rank, in every ZeRO stage and
// also where a rule takes norms over whole tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "zero3d/core/text.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

/// The gradient of each parameter is its value; the loss is 1.
class PullBlock final : public Block {
 public:
  explicit PullBlock(std::vector<ParameterSpec> specs) : specs_(std::move(specs)) {}
  std::string name() const override { return "pull"; }
  std::vector<ParameterSpec> parameters() const override { return specs_; }
  Values forward(BlockContext& context, Values, Saved&) override { return ones(context); }
  Values backward_inputs(BlockContext& context, Values, Saved&) override {
    return context.wants_input_gradient() ? ones(context) : Values();
  }
  void backward_weights(BlockContext& context, Saved&) override {
    for (std::size_t i = 0; i < specs_.size(); ++i)
      kernels::convert(context.stream(), context.parameter(i), context.write_gradient(i));
  }

 private:
  static Values ones(BlockContext& context) {
    Values values;
    values.push_back(context.allocate(DType::f32, Shape{2}));
    kernels::fill(context.stream(), values[0], 1.0f);
    return values;
  }

  std::vector<ParameterSpec> specs_;
};

class PullModule final : public Module {
 public:
  PullModule() {
    // Cut at multiples of 1,024 elements: sums of squares have the same blocks then.
    blocks_.push_back(std::make_unique<PullBlock>(
        std::vector{spec("a.cut", Shape{64, 64}, 0), spec("a.copied", Shape{700}, -1)}));
    blocks_.push_back(std::make_unique<PullBlock>(
        std::vector{spec("b.copied", Shape{3, 500}, -1), spec("b.cut", Shape{4096}, 0)}));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  static ParameterSpec spec(const std::string& name, const Shape& shape, int dim) {
    ParameterSpec spec;
    spec.name = name;
    spec.shape = shape;
    spec.split.dim = dim;
    spec.initial = normal_values(name, 0.5f);
    return spec;
  }

  std::vector<std::unique_ptr<Block>> blocks_;
};

struct Trained {
  std::map<std::string, std::vector<float>> parameters;
  std::vector<double> norms;
  std::vector<double> losses;
  std::int64_t tokens = 0;
};

/// Adds what is here of a parameter; where ranks hold the same they must agree.
void merge(const LayoutParameter& parameter, const ConstView& global, Trained& trained) {
  std::vector<float>& values = trained.parameters[parameter.spec.name];
  values.resize(static_cast<std::size_t>(global.numel()), std::nanf(""));
  for (const GlobalRun& run : global_runs(parameter.placement, 0, parameter.numel())) {
    for (std::int64_t i = run.global_first; i < run.global_first + run.count; ++i) {
      float& value = values[static_cast<std::size_t>(i)];
      const float here = global.as<float>()[i];
      EXPECT_TRUE(std::isnan(value) || value == here) << parameter.spec.name << " at " << i;
      value = here;
    }
  }
}

Trained train(const std::string& optimizer, int stage, const GridDegrees& degrees) {
  TrainSettings settings = settings_of(
      concat(R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
                 "gradient_clipping": 1.0, "optimizer": )",
             optimizer, R"(, "zero_optimization": {"stage3_param_persistence_threshold": 800,
                 "stage": )",
             stage, "}}"),
      degrees.dp);
  settings.tp = degrees.tp;
  settings.pp = degrees.pp;
  Trained trained;
  std::mutex mutex;
  run_ranks(degrees.dp * degrees.tp * degrees.pp, [&](Communicator& world) {
    const Mesh mesh(world, degrees);
    const PullModule module;
    const auto device = make_cpu_device({});
    Engine engine(settings, module, mesh, *device);
    const TokenBatch batch(1, 4);
    const std::vector<MicroBatch> window(2, batch.view());
    for (int step = 0; step < 3; ++step) {
      const StepResult result = engine.train_batch(window);
      if (!mesh.leads()) continue;
      trained.norms.push_back(result.grad_norm);
      trained.losses.push_back(result.loss);
      trained.tokens = result.tokens;
    }
    const ParamLayout& layout = engine.model().plan().model_layout();
    engine.model().for_each_parameter([&](const ParameterSpec& spec, const ConstView& global) {
      const std::lock_guard lock(mutex);
      merge(layout.parameter(layout.find(spec.name)), global, trained);
    });
  });
  return trained;
}

TEST(MeshModel, TensorParallelPartsTrainToTheBitsOfOneRank) {
  for (const char* optimizer :
       {R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})",
        R"({"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}})"}) {
    const Trained expected = train(optimizer, 0, {});
    EXPECT_EQ(expected.losses, std::vector<double>(3, 1.0));
    for (int stage = kSanitized ? 2 : 0; stage <= 3; ++stage) {
      for (const GridDegrees& degrees :
           {GridDegrees{.dp = 2, .tp = 2}, GridDegrees{.tp = 2}, GridDegrees{.tp = 4},
            GridDegrees{.tp = 2, .pp = 2}, GridDegrees{.dp = 2, .tp = 2, .pp = 2}}) {
        if (kSanitized && degrees.dp == 1) continue;
        SCOPED_TRACE(concat(optimizer, ", stage ", stage, ", dp ", degrees.dp, ", tp ", degrees.tp,
                            ", pp ", degrees.pp));
        const Trained found = train(optimizer, stage, degrees);
        EXPECT_EQ(found.norms, expected.norms);
        EXPECT_EQ(found.losses, expected.losses);
        EXPECT_EQ(found.tokens, expected.tokens * degrees.dp);
        EXPECT_TRUE(found.parameters == expected.parameters);
      }
    }
  }
}

}  // namespace
}  // namespace zero3d::test
