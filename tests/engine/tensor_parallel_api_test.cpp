// Calls of an engine on a mesh with a tensor-parallel axis: whole parameters out and in,
// generation, what is refused, and modules of one's own.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/gemm.h"
#include "zero3d/tests/engine/mesh_run.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

/// The bytes of all files of a folder, by name.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::stringstream bytes;
    bytes << in.rdbuf();
    files[entry.path().filename().string()] = bytes.str();
  }
  return files;
}

TEST(TensorParallel, ExportsAreTheFilesOfOneRank) {
  for (const std::size_t family : {0, 1, 4}) {
    const ModelConfig model = nano_families()[family];
    std::map<std::string, std::string> expected;
    for (const auto& [tp, dp] : {std::pair(1, 1), std::pair(2, 2), std::pair(8, 1)}) {
      SCOPED_TRACE(concat(name_of(model), ", tp ", tp, ", dp ", dp));
      const TemporaryFolder folder;
      const MeshRun run{.tp = tp,
                        .dp = dp,
                        .stage = 3,
                        .steps = 0,
                        .zero = R"("stage3_gather_16bit_weights_on_model_save": true)"};
      RunOptions options = options_of(model, run);
      options.body = [&](Engine& engine, Module&, int) {
        EXPECT_TRUE(engine.save_16bit_model(folder.file("out")));
      };
      run_engine(mesh_json(run), options);
      const auto files = files_of(folder.file("out"));
      if (expected.empty()) expected = files;
      EXPECT_EQ(files.size(), expected.size());
      EXPECT_TRUE(files == expected);
    }
  }
}

TEST(TensorParallel, ParametersAreReadAndWrittenWholeByName) {
  const ModelConfig model = nano_families()[0];
  const MeshRun run{.tp = 2, .dp = 2, .stage = 3, .micro_batches = 2, .steps = 0};
  for (const int writer : {0, 1, 3}) {
    RunOptions options = options_of(model, run);
    options.body = [&](Engine& engine, Module&, int rank) {
      const std::vector<std::string> names = {"transformer.h.0.attn.c_attn.weight",
                                              "transformer.h.0.ln_1.weight",
                                              "transformer.wte.weight"};
      const auto value = [](std::int64_t i) { return static_cast<float>(i % 97); };
      engine.model().with_parameters(names, writer, [&](const ParameterSpec&, View whole) {
        if (rank != writer) return;
        for (std::int64_t i = 0; i < whole.numel(); ++i) whole.as<float>()[i] = value(i);
      });
      engine.model().with_parameters(names, -1, [&](const ParameterSpec& spec, View whole) {
        ASSERT_EQ(whole.shape(), spec.shape);
        for (std::int64_t i = 0; i < whole.numel(); ++i)
          ASSERT_EQ(whole.as<float>()[i], value(i)) << spec.name << " rank " << rank;
      });
    };
    run_engine(mesh_json(run), options);
  }
}

TEST(TensorParallel, GeneratesAndEvaluatesAsOneRankWhateverTheLength) {
  for (const std::size_t family : {0, 5}) {
    const ModelConfig model = nano_families()[family];
    std::vector<float> expected;
    double expected_loss = 0;
    for (const auto& [tp, top] : {std::pair(1, ""), std::pair(4, ""), std::pair(4, kSplit)}) {
      const MeshRun run{.tp = tp, .dp = 1, .stage = 3, .steps = 0, .top = top};
      RunOptions options = options_of(model, run);
      const bool one = tp == 1;
      options.body = [&](Engine& engine, Module&, int rank) {
        const std::vector<std::int32_t> tokens = {1, 5, 60, 2, 7};
        const std::vector<float> logits = engine.next_logits(tokens);
        ASSERT_EQ(logits.size(), 61u);
        const TokenBatch batch = nano_batch({0, 0, 0}, 1, 1, kRows);
        const MicroBatch view = batch.view();
        const double loss = engine.eval_batch({&view, 1});
        if (one) {
          expected = logits;
          expected_loss = loss;
          return;
        }
        EXPECT_NEAR(loss, expected_loss, kClose * expected_loss) << rank;
        for (std::size_t i = 0; i < logits.size(); ++i)
          EXPECT_NEAR(logits[i], expected[i], 1e-5) << rank;
      };
      run_engine(mesh_json(run), options);
    }
  }
}

TEST(TensorParallel, RanksOfOneGroupMustReadTheSameSamples) {
  const MeshRun run{.tp = 2, .dp = 1};
  RunOptions options = options_of(nano_families()[0], run);
  options.body = [](Engine& engine, Module&, int rank) {
    const TokenBatch batch = nano_batch({rank, 0, 0}, 2, 1, kRows);
    engine.forward(batch.view());
  };
  try {
    run_engine(mesh_json(run), options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("rank 1 (tp 1) was given another batch than rank 0 (tp 0)"),
        std::string::npos)
        << error.what();
  }
}

TEST(TensorParallel, HeadsThatCannotBeDealtAreRefusedAllAtOnceWithWhatWould) {
  ModelConfig model = nano_families()[1];
  model.heads = 12;
  model.kv_heads = 4;
  const MeshRun run{.tp = 8, .dp = 1};
  try {
    train(model, run);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "the model cannot be cut over dp 1 x tp 8 x pp 1:\n"
                 "  its 12 attention heads cannot be dealt evenly to tp 8 ranks: tp 1, 2, 4 or 12 "
                 "would do");
  }
  model.heads = 6;
  model.kv_heads = 3;
  try {
    train(model, {.tp = 4, .dp = 1});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("6 attention heads"), std::string::npos) << message;
    EXPECT_NE(message.find("3 key and value heads"), std::string::npos) << message;
  }
}

TEST(TensorParallel, AnOverflowOnOneRankSkipsTheStepOnAllAndNamesItInMeshTerms) {
  const MeshRun run{.tp = 2, .dp = 2, .stage = 2, .micro_batches = 2, .steps = 0};
  RunOptions options = options_of(nano_families()[0], run);
  options.engine.max_consecutive_skips = 1;
  options.body = [](Engine& engine, Module&, int) {
    // One element of what tp rank 1 alone holds: the last row of the table is a target of no one,
    // and yet part of every softmax.
    engine.model().with_parameters(
        {"transformer.h.1.mlp.c_fc.bias"}, 0, [](const ParameterSpec&, View whole) {
          whole.as<float>()[whole.numel() - 1] = std::numeric_limits<float>::quiet_NaN();
        });
    const TokenBatch batch = nano_batch({0, 0, 0}, 1, 1, kRows);
    const MicroBatch view = batch.view();
    engine.train_batch({&view, 1});
  };
  try {
    run_engine(mesh_json(run), options);
    FAIL() << "trained on a NaN";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("NaN in the averaged gradient of"), std::string::npos) << message;
    EXPECT_NE(message.find("(dp 0, tp "), std::string::npos) << message;
  }
}

/// y = x W^T + b with W [1, 4] cut by inputs: the sum over ranks has the bias once.
class RowParallelBlock final : public Block {
 public:
  std::string name() const override { return "row parallel"; }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec weight, bias;
    weight.name = "weight";
    weight.shape = Shape{1, 4};
    weight.initial = constant_values(1.0f);
    weight.split.dim = 1;
    bias.name = "bias";
    bias.shape = Shape{1};
    bias.initial = constant_values(5.0f);
    return {weight, bias};
  }
  Values forward(BlockContext& context, Values, Saved&) override {
    const std::int64_t here = context.parameter(0).numel();
    Tensor x = input(context, here);
    Tensor y = context.allocate({1, 1, 1});
    kernels::Gemm product;
    product.a = x;
    product.b = context.parameter(0);
    product.trans_b = kernels::Transpose::yes;
    product.c = y.view().reshaped({1, 1});
    if (context.tp().rank() == 0) product.bias = context.parameter(1);
    kernels::gemm(context.stream(), product);
    y = context.leave(std::move(y));
    Values loss;  // (y, 1)
    loss.push_back(context.allocate(DType::f32, {2}));
    kernels::fill(context.stream(), loss[0], 1.0f);
    context.stream().device().copy(context.stream(), loss[0].view().flat(0, 1),
                                   y.view().flat(0, 1));
    return loss;
  }
  Values backward_inputs(BlockContext& context, Values gradients, Saved&) override {
    const Tensor x = input(context, context.parameter(0).numel());
    context.stream().device().copy(context.stream(), context.write_gradient(0),
                                   x.view().reshaped(context.parameter(0).shape()));
    kernels::convert(context.stream(), gradients[0], context.write_gradient(1));
    return Values(2);
  }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  /// What is here of (1, 2, 3, 4).
  static Tensor input(BlockContext& context, std::int64_t here) {
    Tensor x = context.allocate({1, here});
    for (std::int64_t i = 0; i < here; ++i)
      kernels::fill(context.stream(), x.view().flat(i, 1),
                    static_cast<float>(context.tp().rank() * here + i + 1));
    return x;
  }
};

class RowParallelModule final : public Module {
 public:
  RowParallelModule() { blocks_.push_back(std::make_unique<RowParallelBlock>()); }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

TEST(TensorParallel, TP03OfAUsersModuleAddsTheBiasOfARowParallelLinearOnce) {
  for (const int tp : {1, 2, 4}) {
    const MeshRun run{.tp = tp, .dp = 1, .micro_batches = 1, .steps = 1};
    RunOptions options = options_of(nano_families()[0], run);
    options.make_module = [](int) { return std::make_unique<RowParallelModule>(); };
    options.batch = [](const Moment&) { return TokenBatch(1, 1); };
    const std::string json = concat(
        R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0}},
                   "tensor_parallel": {"autotp_size": )",
        tp, "}}");
    const RunResult result = run_engine(json, options);
    EXPECT_EQ(result.steps[0].loss, 15.0) << tp;
    EXPECT_EQ(result.gradients[0].at("bias"), std::vector<float>{1.0f}) << tp;
    EXPECT_EQ(result.gradients[0].at("weight"), (std::vector<float>{1, 2, 3, 4})) << tp;
  }
}

}  // namespace
}  // namespace zero3d::test
