// 16-bit runs stay close to fp32, and the number of threads changes no bit.
#include <gtest/gtest.h>

#include <cmath>

#include "zero3d/models/build.h"
#include "zero3d/models/layers.h"
#include "zero3d/tests/models/vectors.h"
#include "zero3d/tests/support/block_harness.h"

namespace zero3d {
namespace {

struct Outcome {
  std::vector<float> loss, logits;
  std::map<std::string, std::vector<float>> gradients;
};

Outcome run(const ModelConfig& config, DType dtype, int threads) {
  const auto module = build_model(config);
  test::HarnessOptions options;
  options.dtype = dtype;
  options.threads = threads;
  options.random = {1, 2, 0, 3};
  test::BlockHarness harness(*module, options);
  for (std::size_t i = 0; const ParameterSpec& spec : list_parameters(*module)) {
    // Numbers that bf16 holds exactly: every precision starts from the same weights.
    std::vector<float> values = test::normals(spec.shape.numel(), i++, 0.08f);
    for (float& value : values) value = to_float(to_bf16(value));
    if (spec.shape.rank() == 1 && spec.name.ends_with("weight"))
      for (float& value : values) value = 1.0f + to_float(to_bf16(value));
    harness.set_parameter(spec.name, values);
  }
  const auto tokens = test::token_ids(3 * 21, config.vocab_size, 1),
             targets = test::token_ids(3 * 21, config.vocab_size, 2);
  Outcome result;
  result.loss = harness.train(tokens, targets, 3);
  for (const std::string& name : harness.parameter_names())
    result.gradients[name] = harness.gradient(name);
  result.logits = harness.read(harness.forward_model(tokens, {}, 3)[0]);
  return result;
}

std::vector<ModelConfig> configs() {
  ModelConfig dropped = test::small_gpt2(3, 12, 130);
  dropped.embedding_dropout = dropped.attention_dropout = dropped.residual_dropout = 0.1;
  ModelConfig tied = test::small_llama(4, 2, 16, 48, 90);
  tied.tied = true;
  return {test::small_gpt2(3, 16, 192),
          dropped,
          test::small_llama(4, 2, 16, 48, 90),
          tied,
          test::small_qwen3(),
          test::small_gemma(),
          test::small_windowed(4)};
}

TEST(Precision, SixteenBitsStayCloseToFp32) {
  for (const ModelConfig& config : configs()) {
    if (config.residual_dropout > 0) continue;
    const Outcome exact = run(config, DType::f32, 1);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      // bf16 keeps 8 bits and fp16 11; roundings add up over two layers.
      const double bound = dtype == DType::bf16 ? 3e-2 : 4e-3;
      const Outcome half = run(config, dtype, 1);
      EXPECT_NEAR(half.loss[0] / half.loss[1], exact.loss[0] / exact.loss[1], bound / 5);
      EXPECT_EQ(half.loss[1], exact.loss[1]);
      EXPECT_LE(test::distance(half.logits, exact.logits), bound * test::norm(exact.logits));
      EXPECT_GT(test::distance(half.logits, exact.logits), 0) << "16-bit rounding shows";
      // A gradient that nearly cancels (a key's bias moves all scores of a row alike) is held to
      // the size of the model's whole gradient.
      double whole = 0;
      for (const auto& [name, gradient] : exact.gradients)
        whole = std::hypot(whole, test::norm(gradient));
      for (const auto& [name, gradient] : exact.gradients)
        EXPECT_LE(test::distance(half.gradients.at(name), gradient),
                  bound * (test::norm(gradient) + 0.01 * whole))
            << name << " " << name_of(dtype);
    }
  }
}

/// residual + linear(x) of two inputs.
class ProjectOnto final : public Block {
 public:
  ProjectOnto() { linear_ = declare_linear(list_, {.prefix = "linear", .in = 2, .out = 1}); }
  std::string name() const override { return "project"; }
  std::vector<ParameterSpec> parameters() const override { return list_.specs(); }
  Values forward(BlockContext& context, Values inputs, Saved&) override {
    Tensor y = context.allocate(inputs[1].shape());
    linear_.forward(context, inputs[0], y, inputs[1]);
    inputs.resize(1);
    inputs[0] = std::move(y);
    return inputs;
  }
  Values backward_inputs(BlockContext&, Values, Saved&) override { return {}; }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  ParameterList list_;
  Linear linear_;
};

class Projection final : public Module {
 public:
  Projection() { blocks_.push_back(std::make_unique<ProjectOnto>()); }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

/// As PyTorch: 1 + 2^-8 is 1 in bf16, with another 2^-8 as well; the exact sum 1 + 2^-7 is a bf16.
TEST(Precision, AProductIsRoundedBeforeItsResidualIsAdded) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const float small = std::exp2f(-8);
    const Projection module;
    test::HarnessOptions options;
    options.dtype = dtype;
    test::BlockHarness harness(module, options);
    harness.set_parameter("linear.weight", {1.0f, 1.0f});
    Values inputs;
    inputs.push_back(harness.upload({1.0f, small}, Shape{1, 2}, dtype));
    inputs.push_back(harness.upload({small}, Shape{1, 1}, dtype));
    const float expected = dtype == DType::f32 ? 1.0f + 2 * small : 1.0f;
    EXPECT_EQ(harness.read(harness.forward(0, std::move(inputs))[0]), std::vector{expected})
        << name_of(dtype);
  }
}

TEST(Threads, ChangeNoBit) {
  for (const ModelConfig& config : configs())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Outcome one = run(config, dtype, 1);
      for (const int threads : {2, 3}) {
        const Outcome more = run(config, dtype, threads);
        EXPECT_EQ(one.loss, more.loss);
        EXPECT_EQ(one.logits, more.logits);
        EXPECT_EQ(one.gradients, more.gradients);
      }
    }
}

}  // namespace
}  // namespace zero3d
