// A transformer block's output and all its gradients against a double-precision reference,
// differenced element by element; and with dropout, against differences of its own output.
#include <gtest/gtest.h>

#include "zero3d/models/build.h"
#include "zero3d/tests/models/reference_block.h"
#include "zero3d/tests/models/vectors.h"
#include "zero3d/tests/support/block_harness.h"

namespace zero3d {
namespace {

using test::Doubles;

Doubles doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

struct Case {
  const char* name;
  ModelConfig config;
  std::int64_t batch, seq;
};

ModelConfig with_rope(RopeConfig::Type type) {
  ModelConfig config = test::small_llama(2, 1, 4, 6, 5);
  config.qkv_bias = config.output_bias = config.mlp_bias = false;
  config.max_positions = 4;
  config.rope.type = type;
  config.rope.factor = 4.0;
  config.rope.original_max_positions = 4;
  return config;
}

ModelConfig with_yarn() {
  ModelConfig config = with_rope(RopeConfig::Type::yarn);
  config.rope.original_max_positions = 64;
  return config;
}

ModelConfig with_longrope(std::int64_t original) {
  ModelConfig config = with_rope(RopeConfig::Type::longrope);
  config.rope.short_factor = {1.0, 1.5};
  config.rope.long_factor = {2.0, 7.0};
  config.rope.original_max_positions = original;
  return config;
}

ModelConfig with_part_rotated() {
  ModelConfig config = with_rope(RopeConfig::Type::proportional);
  config.rope.rotated = 0.5;
  return config;
}

ModelConfig scaled_gpt2(bool scale, bool by_layer) {
  ModelConfig config = test::small_gpt2(1, 5, 3);
  config.scale_attention = scale;
  config.scale_by_inverse_layer = by_layer;
  return config;
}

std::vector<Case> cases() {
  return {{"gpt2", test::small_gpt2(), 2, 5},
          {"gpt2_one_token", test::small_gpt2(), 1, 1},
          {"gpt2_unscaled", scaled_gpt2(false, false), 1, 7},
          {"gpt2_by_layer", scaled_gpt2(true, true), 3, 3},
          {"llama_grouped_biased", test::small_llama(), 2, 5},
          {"llama_one_token", test::small_llama(), 1, 1},
          {"llama_one_kv_head", test::small_llama(3, 1, 2, 7, 9), 1, 6},
          {"rope_linear", with_rope(RopeConfig::Type::linear), 1, 6},
          {"rope_dynamic_stretched", with_rope(RopeConfig::Type::dynamic), 1, 6},
          {"rope_llama3", with_rope(RopeConfig::Type::llama3), 2, 4},
          {"rope_yarn", with_yarn(), 1, 6},
          {"rope_longrope_short", with_longrope(6), 1, 6},
          {"rope_longrope_long", with_longrope(5), 1, 6},
          {"rope_proportional", with_part_rotated(), 1, 6},
          {"qwen3", test::small_qwen3(), 2, 5},
          {"gemma", test::small_gemma(), 2, 5},
          {"window_of_one", test::small_windowed(1), 1, 6},
          {"window_of_three", test::small_windowed(3), 2, 7}};
}

std::string prefix_of(const ModelConfig& config, std::int64_t layer) {
  return (config.family == ModelConfig::Family::gpt2 ? "transformer.h." : "model.layers.") +
         std::to_string(layer) + ".";
}

class BlockGradient : public testing::TestWithParam<Case> {};

TEST_P(BlockGradient, MatchesTheReference) {
  const auto& [name, config, batch, seq] = GetParam();
  const std::int64_t layer = 1, width = config.hidden_size;
  const auto module = build_model(config);
  test::BlockHarness harness(*module);
  test::ReferenceBlock reference(config, layer, batch, seq);
  const std::string prefix = prefix_of(config, layer);
  const auto specs = module->blocks()[2]->parameters();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    // Away from initial values: norms near 1, everything else large enough to matter.
    std::vector<float> values = test::normals(specs[i].shape.numel(), 100 + i, 0.4f);
    if (specs[i].name.find("ln_") != std::string::npos ||
        specs[i].name.find("norm") != std::string::npos)
      for (float& value : values) value += 1.0f;
    harness.set_parameter(specs[i].name, values);
    reference.parameters[specs[i].name.substr(prefix.size())] = doubles(values);
  }
  const std::vector<float> x = test::normals(batch * seq * width, 1),
                           seed = test::normals(batch * seq * width, 2);
  const auto objective = [&](const Doubles& input) {
    const Doubles y = reference.forward(input);
    double total = 0;
    for (std::size_t i = 0; i < y.size(); ++i) total += y[i] * seed[i];
    return total;
  };

  harness.clear_gradients();
  const Shape shape{batch, seq, width};
  Values values;
  values.push_back(harness.upload(x, shape, DType::f32));
  values.push_back(harness.upload(test::token_ids(batch * seq, 9, 3), Shape{batch, seq}));
  values = harness.forward(2, std::move(values));
  ASSERT_EQ(values.size(), 2u);
  EXPECT_TRUE(values[1].defined()) << "targets pass through";
  const std::vector<float> y = harness.read(values[0]);
  const Doubles expected = reference.forward(doubles(x));
  for (std::size_t i = 0; i < y.size(); ++i)
    ASSERT_NEAR(y[i], expected[i], 2e-5 * (1 + std::abs(expected[i]))) << i;

  Values gradients;
  gradients.push_back(harness.upload(seed, shape, DType::f32));
  gradients.emplace_back();
  gradients = harness.backward_inputs(2, std::move(gradients));
  harness.backward_weights(2);
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_FALSE(gradients[1].defined());

  const auto compare = [&](const std::string& what, const std::vector<float>& gradient,
                           Doubles& point, const Doubles& input) {
    const double step = 1e-5;
    double error = 0, size = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double kept = point[i];
      point[i] = kept + step;
      const double above = objective(input);
      point[i] = kept - step;
      const double below = objective(input);
      point[i] = kept;
      const double slope = (above - below) / (2 * step);
      error += std::pow(gradient[i] - slope, 2);
      size += slope * slope;
    }
    EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(size) + 1e-5) << what;
  };
  Doubles input = doubles(x);
  compare("input", harness.read(gradients[0]), input, input);
  for (const ParameterSpec& spec : specs)
    compare(spec.name, harness.gradient(spec.name),
            reference.parameters.at(spec.name.substr(prefix.size())), input);
}

INSTANTIATE_TEST_SUITE_P(Cases, BlockGradient, testing::ValuesIn(cases()),
                         [](const auto& test_case) { return std::string(test_case.param.name); });

// With dropout the masks are part of the function: moving each parameter along its gradient must
// move the loss by the gradient's norm.
TEST(Dropout, GradientIsOfTheFunctionThatRan) {
  ModelConfig gpt2 = test::small_gpt2(3, 4, 20, 2);
  gpt2.embedding_dropout = 0.2;
  gpt2.attention_dropout = 0.3;
  gpt2.residual_dropout = 0.25;
  ModelConfig llama = test::small_llama();
  llama.attention_dropout = 0.3;
  for (const ModelConfig& config : {gpt2, llama}) {
    const auto module = build_model(config);
    test::HarnessOptions options;
    options.random = {11, 3, 0, 20};
    test::BlockHarness harness(*module, options);
    for (std::size_t i = 0; const std::string& name : harness.parameter_names()) {
      std::vector<float> values = harness.parameter(name);
      harness.set_parameter(
          name, test::normals(static_cast<std::int64_t>(values.size()), 40 + i++, 0.3f));
    }
    const auto tokens = test::token_ids(3 * 7, config.vocab_size, 5);
    const auto targets = test::token_ids(3 * 7, config.vocab_size, 6);
    harness.train(tokens, targets, 3);
    std::map<std::string, std::vector<float>> gradients;
    for (const std::string& name : harness.parameter_names())
      gradients[name] = harness.gradient(name);

    const auto loss_at = [&](const std::string& name, const std::vector<float>& values) {
      harness.set_parameter(name, values);
      const std::vector<float> loss = harness.read(harness.forward_model(tokens, targets, 3)[0]);
      return static_cast<double>(loss[0]) / loss[1];
    };
    for (const auto& [name, gradient] : gradients) {
      const double size = test::norm(gradient), step = 0.02;
      if (size < 1e-3) continue;  // below what fp32 losses resolve
      const std::vector<float> start = harness.parameter(name);
      std::vector<float> above = start, below = start;
      for (std::size_t i = 0; i < start.size(); ++i) {
        above[i] += static_cast<float>(step * gradient[i] / size);
        below[i] -= static_cast<float>(step * gradient[i] / size);
      }
      const double slope = (loss_at(name, above) - loss_at(name, below)) / (2 * step);
      harness.set_parameter(name, start);
      EXPECT_NEAR(slope, size, 5e-3 * size + 1e-4) << name;
    }
  }
}

// Masks belong to the global sample: a batch equals its rows run one by one.
TEST(Dropout, DependsOnTheSampleNotTheBatch) {
  ModelConfig config = test::small_gpt2();
  config.embedding_dropout = config.attention_dropout = config.residual_dropout = 0.4;
  const auto module = build_model(config);
  test::HarnessOptions options;
  options.random = {5, 2, 0, 100};
  test::BlockHarness harness(*module, options);
  harness.initialise(1);
  const std::int64_t seq = 6;
  const auto tokens = test::token_ids(3 * seq, config.vocab_size, 5);
  const std::vector<float> batch = harness.read(harness.forward_model(tokens, {}, 3)[0]);
  for (std::int64_t row = 0; row < 3; ++row) {
    harness.options().random.sample = 100 + static_cast<std::uint64_t>(row);
    const std::vector<std::int32_t> one(tokens.begin() + row * seq,
                                        tokens.begin() + (row + 1) * seq);
    const std::vector<float> logits = harness.read(harness.forward_model(one, {}, 1)[0]);
    const auto part = batch.begin() + row * seq * config.vocab_size;
    for (std::size_t i = 0; i < logits.size(); ++i)
      ASSERT_NEAR(logits[i], part[static_cast<std::ptrdiff_t>(i)], 1e-5) << row;
  }
  harness.options().random = {5, 3, 0, 100};
  EXPECT_NE(harness.read(harness.forward_model(tokens, {}, 3)[0]), batch)
      << "another step, other masks";
  harness.options().training = false;
  const std::vector<float> evaluated = harness.read(harness.forward_model(tokens, {}, 3)[0]);
  harness.options().random = {6, 4, 0, 0};
  EXPECT_EQ(harness.read(harness.forward_model(tokens, {}, 3)[0]), evaluated)
      << "no dropout in evaluation";
}

}  // namespace
}  // namespace zero3d
