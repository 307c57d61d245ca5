// The bytes blocks hold against what the dry run counts, and what happens to work and memory when
// something is frozen or nothing is saved.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/dry_run.h"
#include "zero3d/engine/recomputation.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/models/build.h"
#include "zero3d/tests/models/vectors.h"
#include "zero3d/tests/support/block_harness.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d {
namespace {

std::vector<ModelConfig> configs() {
  ModelConfig dropped = test::small_gpt2();
  dropped.embedding_dropout = dropped.attention_dropout = dropped.residual_dropout = 0.1;
  ModelConfig narrow_dropped = test::small_gpt2(3, 4, 2);
  narrow_dropped.residual_dropout = 0.1;
  ModelConfig wide_vocabulary = test::small_llama();
  wide_vocabulary.vocab_size = 1000;
  ModelConfig byte_vocabulary = test::small_gpt2();
  byte_vocabulary.vocab_size = 2;
  return {test::small_gpt2(),
          dropped,
          narrow_dropped,
          test::small_gpt2(1, 32, 7),
          byte_vocabulary,
          test::small_llama(),
          wide_vocabulary,
          test::small_llama(1, 1, 2, 40, 3),
          test::small_llama(8, 8, 16, 4, 100),
          built_in_model_config("llama-tiny"),
          test::small_qwen3(),
          test::small_gemma(),
          test::small_windowed(3)};
}

/// The dry run against what one micro-batch held on a device that computes.
void check_bytes(const ModelConfig& config, std::int64_t batch, std::int64_t seq, DType dtype) {
  SCOPED_TRACE(testing::Message() << architecture_name(config.family) << " hidden "
                                  << config.hidden_size << " batch " << batch << " seq " << seq
                                  << " " << name_of(dtype));
  const auto module = build_model(config);
  test::HarnessOptions options;
  options.dtype = dtype;
  test::BlockHarness harness(*module, options);
  harness.initialise(3);
  harness.train(test::token_ids(batch * seq, config.vocab_size, 1),
                test::token_ids(batch * seq, config.vocab_size, 2), batch);
  EXPECT_EQ(harness.memory().use().current, 0) << "blocks leave nothing behind";

  std::vector<std::vector<ParameterSpec>> blocks;
  for (const auto& block : module->blocks()) blocks.push_back(block->parameters());
  const ParamLayout layout(blocks, {});
  const auto planned = [&](int micro_batches) {
    return peak_activation_bytes(*module, layout, plan_step(stage_of(layout), micro_batches), dtype,
                                 batch, seq)
        .device;
  };
  EXPECT_EQ(planned(1), harness.memory().use().peak);
  EXPECT_EQ(planned(50), planned(1));
}

TEST(DryRun, CountsWhatATrainingStepHolds) {
  for (const ModelConfig& config : configs())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [batch, seq] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 7}, {3, 29}})
        check_bytes(config, batch, seq, dtype);
}

/// A step of an engine with recomputation, held to its plan; returns the plan's activations.
std::int64_t recomputed_bytes(const ModelConfig& config, std::int64_t batch, std::int64_t sequence,
                              DType dtype, const std::string& members) {
  SCOPED_TRACE(testing::Message() << architecture_name(config.family) << " hidden "
                                  << config.hidden_size << " batch " << batch << " sequence "
                                  << sequence << " " << name_of(dtype) << " " << members);
  test::RunOptions options;
  options.steps = 1;
  options.make_module = [&](int) { return build_model(config); };
  options.batch = [&](const test::Moment&) {
    test::TokenBatch made(batch, sequence);
    made.tokens = test::token_ids(batch * sequence, config.vocab_size, 1);
    made.targets = test::token_ids(batch * sequence, config.vocab_size, 2);
    return made;
  };
  const test::RunResult result = test::run_engine(
      concat(R"({"train_micro_batch_size_per_gpu": )", batch, R"(, "optimizer": {"type": "SGD"}, )",
             R"("bf16": {"enabled": )", dtype == DType::bf16 ? "true" : "false", "}", members, "}"),
      options);
  EXPECT_EQ(result.memory[0].peak, result.estimates[0].total());
  return result.estimates[0][Tier::device][Category::activations];
}

TEST(DryRun, CountsWhatAStepWithRecomputationHolds) {
  for (ModelConfig config : configs()) {
    while (config.layers < 5) {  // those of a list by layer with it
      ++config.layers;
      if (!config.windowed_layers.empty()) config.windowed_layers.push_back(false);
    }
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const auto& [batch, sequence] : {std::pair<std::int64_t, std::int64_t>{1, 7}, {3, 29}}) {
        const auto bytes = [&, batch = batch, sequence = sequence](const std::string& members) {
          return recomputed_bytes(config, batch, sequence, dtype, members);
        };
        const std::int64_t plain = bytes("");
        const std::int64_t each = bytes(R"(, "pipeline": {"activation_checkpoint_interval": 1})");
        const std::int64_t two =
            bytes(R"(, "activation_checkpointing": {"number_checkpoints": 2})");
        if (sequence == 7) continue;  // little to save, and copies of inputs to keep
        EXPECT_LT(each, plain);
        EXPECT_LT(two, plain);
      }
    }
  }
}

TEST(DryRun, TakesMillisecondsAtAnyDepthAndAccumulation) {
  ModelConfig config = built_in_model_config("gpt2-xl");
  ASSERT_EQ(config.layers, 48);
  const auto module = build_model(config);
  std::vector<std::vector<ParameterSpec>> blocks;
  for (const auto& block : module->blocks()) blocks.push_back(block->parameters());
  const ParamLayout layout(blocks, {});
  std::int64_t shortest = INT64_MAX;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const std::int64_t begin = now_ns();
    peak_activation_bytes(*module, layout, plan_step(stage_of(layout), 64), DType::bf16, 8, 1024);
    shortest = std::min(shortest, now_ns() - begin);
  }
  EXPECT_LT(shortest, 50'000'000);
}

/// What is kept in host memory is planned by addresses as the rest is, and leaves the device.
TEST(DryRun, PlansKeptInputsThatNoMachineHolds) {
  const ModelConfig config = built_in_model_config("gpt2-xl");
  const auto module = build_model(config);
  std::vector<std::vector<ParameterSpec>> blocks;
  for (const auto& block : module->blocks()) blocks.push_back(block->parameters());
  const ParamLayout layout(blocks, {});
  const StageBlocks stage = stage_of(layout);
  constexpr std::int64_t kBatch = 1 << 20, kSequence = 1024;
  const auto bytes = [&](bool on_host) {
    return peak_activation_bytes(
        *module, layout, with_recomputation(plan_step(stage, 1), stage, {.interval = 1}, on_host),
        DType::bf16, kBatch, kSequence);
  };
  const ActivationBytes resident = bytes(false), moved = bytes(true);
  const std::int64_t hidden = kBatch * kSequence * config.hidden_size * 2;
  EXPECT_EQ(resident.pinned, 0);
  EXPECT_GE(moved.pinned, 48 * hidden);
  EXPECT_LE(moved.pinned, 48 * hidden + 50 * kBatch * kSequence * 8) << "beside ids alone";
  EXPECT_GE(resident.device - moved.device, 45 * hidden) << "but for those on their way";
}

/// Looks at its input on the host, as a block must not.
class Curious final : public Block {
 public:
  std::string name() const override { return "curious"; }
  std::vector<ParameterSpec> parameters() const override { return {}; }
  Values forward(BlockContext& context, Values inputs, Saved&) override {
    context.stream().synchronize();
    context.stream().device().host_read(inputs[0]);
    return inputs;
  }
  Values backward_inputs(BlockContext&, Values gradients, Saved&) override { return gradients; }
  void backward_weights(BlockContext&, Saved&) override {}
};

TEST(DryRun, ABlockThatReadsValuesIsTold) {
  struct One final : Module {
    One() { list.push_back(std::make_unique<Curious>()); }
    const std::vector<std::unique_ptr<Block>>& blocks() const override { return list; }
    std::vector<std::unique_ptr<Block>> list;
  };
  const ParamLayout layout({{}}, {});
  try {
    peak_activation_bytes(One(), layout, plan_step({1, 0}, 1), DType::f32, 1, 4);
    FAIL() << "read memory that is none";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("dry run"), std::string::npos) << error.what();
  }
}

TEST(Evaluation, SavesNothingAndGivesTheSameLogits) {
  for (const ModelConfig& config :
       {test::small_gpt2(), test::small_llama(), test::small_qwen3(), test::small_gemma()}) {
    const auto module = build_model(config);
    test::BlockHarness training(*module);
    test::HarnessOptions options;
    options.saves = false;
    test::BlockHarness evaluation(*module, options);
    training.initialise(3);
    evaluation.initialise(3);
    const auto tokens = test::token_ids(2 * 9, config.vocab_size, 1),
               targets = test::token_ids(2 * 9, config.vocab_size, 2);
    EXPECT_EQ(training.read(training.forward_model(tokens, targets, 2)[0]),
              evaluation.read(evaluation.forward_model(tokens, targets, 2)[0]));
    evaluation.synchronize();
    EXPECT_EQ(evaluation.memory().use().current, 0);
    EXPECT_LT(evaluation.memory().use().peak, training.memory().use().peak);
    for (std::size_t i = 0; i < module->blocks().size(); ++i)
      EXPECT_TRUE(evaluation.saved(i).tensors.empty());
  }
}

/// Gradients with everything trained, to compare those that remain with.
class Frozen : public testing::Test {
 protected:
  void check(const ModelConfig& config, const std::function<bool(const std::string&)>& frozen) {
    const auto module = build_model(config);
    const auto tokens = test::token_ids(2 * 5, config.vocab_size, 1),
               targets = test::token_ids(2 * 5, config.vocab_size, 2);
    test::BlockHarness all(*module);
    all.initialise(3);
    all.train(tokens, targets, 2);
    test::HarnessOptions options;
    options.frozen = frozen;
    test::BlockHarness some(*module, options);
    some.initialise(3);
    some.train(tokens, targets, 2);
    for (const std::string& name : all.parameter_names()) {
      if (frozen(name)) continue;
      EXPECT_EQ(some.gradient(name), all.gradient(name)) << name;
    }
    EXPECT_EQ(some.memory().use().current, 0);
    EXPECT_LE(some.memory().use().peak, all.memory().use().peak);
  }
};

TEST_F(Frozen, OneParameterAtATime) {
  for (const ModelConfig& config :
       {test::small_gpt2(2, 4, 8, 1), test::small_llama(2, 1, 4, 6, 8, 1), test::small_qwen3(),
        test::small_gemma()})
    for (const ParameterSpec& spec : list_parameters(*build_model(config)))
      check(config, [&](const std::string& name) { return name == spec.name; });
}

TEST_F(Frozen, AllButOneParameter) {
  for (const ModelConfig& config :
       {test::small_gpt2(2, 4, 8, 1), test::small_llama(2, 1, 4, 6, 8, 1), test::small_qwen3(),
        test::small_gemma()})
    for (const ParameterSpec& spec : list_parameters(*build_model(config)))
      check(config, [&](const std::string& name) { return name != spec.name; });
}

TEST_F(Frozen, EverythingBelowABlock) {
  ModelConfig config = test::small_gpt2();
  config.tied = false;
  const auto module = build_model(config);
  const auto tokens = test::token_ids(2 * 5, config.vocab_size, 1),
             targets = test::token_ids(2 * 5, config.vocab_size, 2);
  test::BlockHarness all(*module), upper(*module);
  for (test::BlockHarness* harness : {&all, &upper}) harness->initialise(3);
  all.train(tokens, targets, 2);

  upper.clear_gradients();
  upper.forward_model(tokens, targets, 2);
  Values gradients;
  gradients.push_back(upper.upload(std::vector<float>{1.0f}, Shape{1}, DType::f32));
  for (const std::size_t block : {3u, 2u}) {
    upper.options().wants_input_gradient = block != 2;
    gradients = upper.backward_inputs(block, std::move(gradients));
    upper.backward_weights(block);
  }
  EXPECT_FALSE(gradients[0].defined()) << "nothing below wants it";
  for (const std::size_t block : {2u, 3u})
    for (const ParameterSpec& spec : module->blocks()[block]->parameters())
      EXPECT_EQ(upper.gradient(spec.name), all.gradient(spec.name)) << spec.name;
}

TEST(Sequence, LongerThanThePositionTableIsRefused) {
  const auto module = build_model(test::small_gpt2());
  test::BlockHarness harness(*module);
  harness.initialise(1);
  try {
    harness.forward_model(test::token_ids(33, 61, 1), {}, 1);
    FAIL() << "33 tokens on 32 positions";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("33"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("n_positions"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace zero3d
