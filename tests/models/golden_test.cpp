// Logits, loss and every gradient against what PyTorch and transformers recorded for the same
// weights (tests/golden/models).
#include <gtest/gtest.h>

#include "zero3d/formats/safetensors.h"
#include "zero3d/models/build.h"
#include "zero3d/tests/models/vectors.h"
#include "zero3d/tests/support/block_harness.h"

namespace zero3d {
namespace {

using test::distance;
using test::norm;

std::string folder(const std::string& model) { return "tests/golden/models/" + model; }

template <typename T>
std::vector<T> values_of(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) throw_invalid(name + " is not in " + file.path());
  std::vector<T> values(static_cast<std::size_t>(entry->numel()));
  file.read(
      *entry, 0,
      View(reinterpret_cast<std::byte*>(values.data()), dtype_of<T>::value, Shape{entry->numel()}));
  return values;
}

class RecordedModel : public testing::TestWithParam<std::string> {
 protected:
  RecordedModel()
      : config_(read_model_config(folder(GetParam()))),
        module_(build_model(config_)),
        weights_(folder(GetParam()) + "/model.safetensors"),
        expected_(folder(GetParam()) + "/expected.safetensors"),
        inputs_(values_of<std::int32_t>(expected_, "inputs")),
        targets_(values_of<std::int32_t>(expected_, "targets")),
        batch_(expected_.find("inputs")->shape[0]) {}

  void load(test::BlockHarness& harness) {
    for (const ParameterSpec& spec : list_parameters(*module_))
      harness.set_parameter(spec.name, values_of<float>(weights_, spec.name));
  }

  ModelConfig config_;
  std::unique_ptr<Module> module_;
  SafetensorsFile weights_;
  SafetensorsFile expected_;
  std::vector<std::int32_t> inputs_, targets_;
  std::int64_t batch_;
};

TEST_P(RecordedModel, DeclaresTheFilesTensors) {
  const auto parameters = list_parameters(*module_);
  EXPECT_EQ(parameters.size(), weights_.tensors().size());
  std::int64_t count = 0;
  for (const ParameterSpec& spec : parameters) {
    const SafetensorsEntry* entry = weights_.find(spec.name);
    ASSERT_NE(entry, nullptr) << spec.name;
    EXPECT_TRUE(same_shape(entry->shape, spec.shape)) << spec.name << to_string(spec.shape);
    count += spec.shape.numel();
  }
  EXPECT_EQ(count, parameter_count(config_));
}

TEST_P(RecordedModel, Logits) {
  test::HarnessOptions options;
  options.saves = options.training = false;
  test::BlockHarness harness(*module_, options);
  load(harness);
  const std::vector<float> logits = harness.read(harness.forward_model(inputs_, {}, batch_)[0]);
  const std::vector<float> expected = values_of<float>(expected_, "logits");
  ASSERT_EQ(logits.size(), expected.size());
  for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-4) << i;
}

TEST_P(RecordedModel, LossAndGradients) {
  test::BlockHarness harness(*module_);
  load(harness);
  const std::vector<float> loss = harness.train(inputs_, targets_, batch_);
  EXPECT_EQ(loss[1], static_cast<float>(inputs_.size()));
  EXPECT_NEAR(loss[0] / loss[1], values_of<float>(expected_, "loss")[0], 1e-6);
  for (const ParameterSpec& spec : list_parameters(*module_)) {
    const std::vector<float> expected = values_of<float>(expected_, "grad." + spec.name);
    const std::vector<float> gradient = harness.gradient(spec.name);
    ASSERT_EQ(gradient.size(), expected.size()) << spec.name;
    EXPECT_LE(distance(gradient, expected), 1e-4 * norm(expected)) << spec.name;
  }
}

// Zero-bubble schedules put weight gradients off; the values may not notice.
TEST_P(RecordedModel, LateWeightGradientsAreTheSameBits) {
  test::BlockHarness at_once(*module_);
  test::HarnessOptions options;
  options.weights_last = true;
  test::BlockHarness late(*module_, options);
  load(at_once);
  load(late);
  EXPECT_EQ(at_once.train(inputs_, targets_, batch_), late.train(inputs_, targets_, batch_));
  for (const std::string& name : at_once.parameter_names())
    EXPECT_EQ(at_once.gradient(name), late.gradient(name)) << name;
}

INSTANTIATE_TEST_SUITE_P(Golden, RecordedModel,
                         testing::Values("gpt2-tiny", "gpt2-odd", "gpt2-untied-4", "llama-tiny",
                                         "llama-tied-rope3", "llama-mha-odd", "qwen2-tiny",
                                         "qwen3-tiny", "mistral-window", "gemma-tiny"),
                         [](const auto& model) {
                           std::string name = model.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace zero3d
