// Training on meshes with a tensor-parallel axis: every family's losses are those of one rank, and
// at a fixed mesh the bits are the same whatever ZeRO stage and tier; what travels is what the
// formulas say.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "zero3d/core/text.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/gemm.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

constexpr double kClose = 1e-5;
constexpr std::int64_t kRows = 2;

struct MeshRun {
  int tp = 1;
  int dp = 1;
  int stage = 0;
  int micro_batches = 4;  ///< Of a step, over all replicas.
  int steps = 5;
  std::string zero;  ///< More of zero_optimization,
  std::string top;   ///< and of the top level.
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}})";
};

std::string json_of(const MeshRun& run) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": )", kRows, R"(, "gradient_accumulation_steps": )",
      run.micro_batches / run.dp, R"(, "gradient_clipping": 0.5, "optimizer": )", run.optimizer,
      R"(, "tensor_parallel": {"autotp_size": )", run.tp, "}", run.top.empty() ? "" : ", ", run.top,
      R"(, "zero_optimization": {"stage3_param_persistence_threshold": 40, "stage": )", run.stage,
      run.zero.empty() ? "" : ", ", run.zero, "}}");
}

RunOptions options_of(const ModelConfig& model, const MeshRun& run) {
  const int accumulation = run.micro_batches / run.dp;
  RunOptions options = nano_options(model, run.dp, accumulation, kRows);
  options.ranks = run.dp * run.tp;
  options.steps = run.steps;
  // Micro-batches in the order of the step, as replicas divide it.
  options.batch = [run, accumulation](const Moment& moment) {
    return nano_batch(moment, run.dp, accumulation, kRows);
  };
  return options;
}

RunResult train(const ModelConfig& model, const MeshRun& run) {
  return run_engine(json_of(run), options_of(model, run));
}

/// As `close`, and parameters too.
void expect_close(const RunResult& expected, const RunResult& actual) {
  EXPECT_TRUE(close(expected, actual, kClose));
}

std::string name_of(const ModelConfig& model) { return std::string(model_type_name(model.family)); }

/// A cover; tests/tools/mesh_runs.py has all of them, over fifty steps.
TEST(TensorParallel, EveryFamilyTrainsAsOneRank) {
  int at = 0;
  for (const ModelConfig& model : nano_families()) {
    const RunResult expected = train(model, {.steps = 3});
    for (const auto& [tp, dp] : {std::pair(2, 1), std::pair(4, 1), std::pair(2, 2)}) {
      const int stage = ++at % 4;
      if (kSanitized && at % 4 != 0) continue;
      SCOPED_TRACE(concat(name_of(model), ", tp ", tp, ", dp ", dp, ", stage ", stage));
      expect_close(expected, train(model, {.tp = tp, .dp = dp, .stage = stage, .steps = 3}));
    }
  }
}

constexpr const char* kSplit = R"("zero3d": {"sequence_parallel": true})";

TEST(TensorParallel, AsSequencesThatAreSplitOutsideOfItsRegions) {
  int at = 0;
  for (const ModelConfig& model : nano_families()) {
    const RunResult expected = train(model, {.steps = 3});
    for (const auto& [tp, dp] : {std::pair(4, 1), std::pair(2, 2)}) {
      const int stage = at++ % 4;
      if (kSanitized && at % 4 != 0) continue;
      SCOPED_TRACE(concat(name_of(model), ", tp ", tp, ", dp ", dp, ", stage ", stage));
      expect_close(expected,
                   train(model, {.tp = tp, .dp = dp, .stage = stage, .steps = 3, .top = kSplit}));
    }
  }
}

TEST(TensorParallel, ASequenceThatCannotBeSplitIsRefused) {
  const MeshRun run{.tp = 4, .dp = 1, .steps = 1, .top = kSplit};
  RunOptions options = options_of(nano_families()[0], run);
  options.batch = [](const Moment& moment) { return nano_batch(moment, 1, 4, kRows, 6); };
  try {
    run_engine(json_of(run), options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("6 tokens cannot be split over 4"), std::string::npos)
        << error.what();
  }
}

constexpr const char* kOverlap =
    R"("tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": true})";

/// A run whose json has `tensor_parallel` from `top`.
RunResult train_overlapped(const ModelConfig& model, MeshRun run) {
  run.top = concat(run.top.empty() ? "" : run.top + ", ", kOverlap);
  std::string json = json_of(run);
  const std::string plain = concat(R"(, "tensor_parallel": {"autotp_size": )", run.tp, "}");
  json.erase(json.find(plain), plain.size());
  return run_engine(json, options_of(model, run));
}

TEST(TensorParallel, SumsBesideProductsChangeNoBit) {
  for (const std::size_t family : {0, 4}) {
    const ModelConfig model = nano_families()[family];
    for (const char* top : {"", kSplit}) {
      SCOPED_TRACE(concat(name_of(model), " ", top));
      const MeshRun run{.tp = 2, .dp = 1, .stage = 1, .micro_batches = 2, .steps = 3, .top = top};
      EXPECT_TRUE(same_bits(train(model, run), train_overlapped(model, run)));
    }
  }
}

TEST(TensorParallel, PartsOfKeptInputsChangeNoBitAndTakeLess) {
  const ModelConfig model = nano_families()[0];
  const auto run_with = [&](const std::string& activations) {
    const MeshRun run{.tp = 2,
                      .dp = 1,
                      .stage = 1,
                      .micro_batches = 2,
                      .steps = 3,
                      .top = concat(R"("activation_checkpointing": {)", activations, "}")};
    return train(model, run);
  };
  const RunResult whole = run_with(R"("number_checkpoints": 3)");
  const RunResult parts = run_with(R"("number_checkpoints": 3, "partition_activations": true)");
  const RunResult host = run_with(
      R"("number_checkpoints": 3, "partition_activations": true, "cpu_checkpointing": true)");
  EXPECT_TRUE(same_bits(whole, parts));
  EXPECT_TRUE(same_bits(whole, host));
  const auto kept = [](const RunResult& run) {
    return run.estimates[0][Tier::device][Category::activations];
  };
  EXPECT_LT(kept(parts), kept(whole));
  for (const RunResult* run : {&parts, &host}) {
    const MemoryEstimate& plan = run->estimates[0];
    const std::int64_t exports = plan[Tier::device][Category::gathered_parameters];
    EXPECT_EQ(run->memory[0].peak + exports, plan.total());
  }
}

TEST(TensorParallel, WholeMatricesAreOrthogonalised) {
  const std::string muon = R"({"type": "Muon", "params": {"lr": 1e-3, "momentum": 0.9}})";
  for (const std::size_t family : {0, 1}) {
    const ModelConfig model = nano_families()[family];
    const RunResult expected = train(model, {.stage = 1, .steps = 3, .optimizer = muon});
    for (const auto& [tp, dp] : {std::pair(4, 1), std::pair(2, 2)}) {
      SCOPED_TRACE(concat(name_of(model), ", tp ", tp, ", dp ", dp));
      expect_close(expected,
                   train(model, {.tp = tp, .dp = dp, .stage = 2, .steps = 3, .optimizer = muon}));
    }
  }
}

TEST(TensorParallel, FewerKeyValueHeadsThanRanksAreShared) {
  ModelConfig model = nano_families()[1];
  for (const std::int64_t kv_heads : {1, 2}) {
    model.kv_heads = kv_heads;
    const RunResult expected = train(model, {.steps = 2});
    for (const int tp : {4, 8}) {
      SCOPED_TRACE(concat(kv_heads, " heads, tp ", tp));
      expect_close(expected, train(model, {.tp = tp, .dp = 1, .stage = 2, .steps = 2}));
    }
  }
}

TEST(TensorParallel, StagesAndTiersAreIdenticalAtAFixedMesh) {
  for (const std::size_t family : {0, 1}) {
    const ModelConfig model = nano_families()[family];
    const MeshRun base{.tp = 2, .dp = 2, .micro_batches = 2, .steps = 3};
    const RunResult expected = train(model, base);
    const TemporaryFolder swap;
    const std::string cpu = R"("offload_optimizer": {"device": "cpu"})";
    for (const auto& [stage, zero] : std::vector<std::pair<int, std::string>>{
             {1, ""},
             {2, ""},
             {3, ""},
             {1, cpu},
             {3, cpu + R"(, "offload_param": {"device": "cpu"})"},
             {3, concat(R"("offload_optimizer": {"device": "nvme", "nvme_path": ")",
                        swap.file("swap"), "\"}")},
             {2, R"("overlap_comm": false, "reduce_bucket_size": 100)"},
             {3, R"("stage3_prefetch_bucket_size": 0, "sub_group_size": 1024)"},
             {3, R"("zero_hpz_partition_size": 2)"}}) {
      SCOPED_TRACE(concat(name_of(model), ", stage ", stage, " ", zero));
      MeshRun run = base;
      run.stage = stage;
      run.zero = zero;
      EXPECT_TRUE(same_bits(expected, train(model, run)));
    }
    MeshRun recomputed = base;
    recomputed.stage = 2;
    recomputed.top = R"("pipeline": {"activation_checkpoint_interval": 1})";
    EXPECT_TRUE(same_bits(expected, train(model, recomputed)));
  }
}

TEST(TensorParallel, NormsOfWholeTensorsAndReducedPrecisionsWork) {
  const ModelConfig model = nano_families()[0];
  const std::string lamb = R"({"type": "Lamb", "params": {"lr": 1e-3, "weight_decay": 0.1}})";
  EXPECT_TRUE(close(train(model, {.stage = 1, .optimizer = lamb}),
                    train(model, {.tp = 2, .dp = 2, .stage = 1, .optimizer = lamb}), kClose));
  for (const char* top :
       {R"("bf16": {"enabled": true})", R"("fp16": {"enabled": true, "initial_scale_power": 8})"}) {
    MeshRun one{.top = top}, cut{.tp = 2, .dp = 1, .stage = 2, .top = top};
    EXPECT_TRUE(close(train(model, one), train(model, cut), 2e-2)) << top;
  }
}

/// What the blocks of a rank sum and gather in one step at tp > 1, in bytes by the counter's
/// convention.
TEST(TensorParallel, WhatTravelsIsWhatTheFormulaSays) {
  constexpr std::int64_t kTokens = kRows * kNanoSequence;
  for (const std::size_t family : {0, 4, 5}) {
    const ModelConfig model = nano_families()[family];
    const int tp = 4, micro_batches = 2;
    for (const bool recomputes : {false, true}) {
      MeshRun run{.tp = tp, .dp = 1, .micro_batches = micro_batches, .steps = 2};
      if (recomputes) run.top = R"("pipeline": {"activation_checkpoint_interval": 1})";
      const RunResult result = train(model, run);
      // Each layer: two sums of hidden states forward, two of their gradients; the embedding one,
      // and the head's input gradient one. Those of forward again where it runs again, which the
      // head's does not.
      const std::int64_t hidden = kTokens * model.hidden_size * 4;
      std::int64_t sums = 4 * model.layers + 2;
      if (recomputes) sums += 2 * model.layers + 1;
      // Gradients of parts of the same: heads' norms; key and value heads where they are shared.
      std::int64_t shared = 0;
      if (model.norms_heads()) shared = model.layers * 2048 * 4;  // two of head_dim, padded
      const CommVolume& volume = result.volumes[1];
      const auto bytes = [&](const char* name) {
        const auto found = volume.operations.find(name);
        return found == volume.operations.end() ? 0 : found->second.bytes;
      };
      SCOPED_TRACE(concat(name_of(model), recomputes ? ", recomputed" : ""));
      EXPECT_EQ(bytes("all_reduce"), 2 * (micro_batches * sums * hidden + shared));
      // Three numbers a row from each rank; and the step's report.
      const std::int64_t statistics = micro_batches * tp * 3 * kTokens * 4;
      EXPECT_EQ(bytes("all_gather") - StepReporter::exchange_bytes(tp - 1), statistics);
    }
  }
}

TEST(TensorParallel, SplitSequencesTravelAsTheFormulaSays) {
  constexpr std::int64_t kTokens = kRows * kNanoSequence;
  for (const std::size_t family : {0, 4}) {
    const ModelConfig model = nano_families()[family];
    const int tp = 2, micro_batches = 2;
    const MeshRun run{.tp = tp, .dp = 1, .micro_batches = micro_batches, .steps = 2, .top = kSplit};
    RunOptions options = options_of(model, run);
    std::int64_t shared = 0;  // gradients of norms, in parts over rows or heads
    options.after = [&](Engine& engine, int rank) {
      if (rank != 0) return;
      for (const Unit& unit : engine.model().plan().layout.units())
        if (unit.sums_holders) shared += unit.shard * 4;
    };
    const RunResult result = run_engine(json_of(run), options);
    const auto& volume = result.volumes[1].operations;
    const std::int64_t hidden = kTokens * model.hidden_size * 4;
    SCOPED_TRACE(name_of(model));
    EXPECT_GT(shared, 0);
    EXPECT_EQ(volume.at("all_reduce").bytes, 2 * shared);
    // Where a sum leaves a region, forward or backward: two a sublayer, one at either end.
    EXPECT_EQ(volume.at("reduce_scatter").bytes - 0,
              micro_batches * (4 * model.layers + 2) * hidden);
    // Where rows enter one: as many, and once more for the weights' gradients.
    const std::int64_t statistics = micro_batches * tp * 3 * kTokens * 4;
    EXPECT_EQ(volume.at("all_gather").bytes - StepReporter::exchange_bytes(tp - 1),
              micro_batches * (6 * model.layers + 3) * hidden + statistics);
  }
}

/// Two rows, whose second product is enqueued while the first is summed: the sum waits for it.
class GatedBlock final : public Block {
 public:
  explicit GatedBlock(std::atomic<int>& products) : products_(products) {}
  std::string name() const override { return "gated"; }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = "weight";
    spec.shape = Shape{8};
    spec.initial = constant_values(1.0f);
    return {spec};
  }
  Values forward(BlockContext& context, Values, Saved&) override {
    Tensor y = context.allocate({1, 2, 4});
    y = context.leave(std::move(y), [&](std::int64_t first, const View& rows) {
      kernels::fill(context.stream(), rows, 1.0f);
      if (first > 0 && !context.is_dry_run())
        context.stream().host_task("second product", {}, [this] { ++products_; });
    });
    Values loss;
    loss.push_back(context.allocate(DType::f32, {2}));
    kernels::convert(context.stream(), y.view().flat(0, 2), loss[0]);
    return loss;
  }
  Values backward_inputs(BlockContext& context, Values, Saved&) override {
    kernels::fill(context.stream(), context.write_gradient(0), 1.0f);
    return Values(2);
  }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  std::atomic<int>& products_;
};

class GatedModule final : public Module {
 public:
  explicit GatedModule(std::atomic<int>& products) {
    blocks_.push_back(std::make_unique<GatedBlock>(products));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

/// Sums on the stream "tp" begin only once every rank's second product has run.
class Gated final : public detail::ForwardingCommunicator {
 public:
  Gated(std::shared_ptr<Communicator> inner, std::atomic<int>& products, int ranks)
      : ForwardingCommunicator(std::move(inner)), products_(products), ranks_(ranks) {}
  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    if (stream.name() == "tp")
      stream.host_task("gate", {}, [this] {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (products_ < ranks_) {
          if (std::chrono::steady_clock::now() > end)
            throw_invalid("a product waits for the sum of the one before");
          std::this_thread::yield();
        }
      });
    inner_->all_reduce(stream, data, options);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<Gated>(inner_->split(color, key), products_, ranks_);
  }

 private:
  std::atomic<int>& products_;
  int ranks_;
};

TEST(TensorParallel, AProductIsComputedWhileTheOneBeforeIsSummed) {
  std::atomic<int> products = 0;
  RunOptions options;
  options.ranks = 2;
  options.steps = 1;
  options.make_module = [&](int) { return std::make_unique<GatedModule>(products); };
  options.batch = [](const Moment&) { return TokenBatch(1, 2); };
  options.wrap = [&](std::unique_ptr<Communicator> world) {
    return std::make_unique<Gated>(std::move(world), products, 2);
  };
  const RunResult result = run_engine(
      concat(
          R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0}}, )",
          kOverlap, "}"),
      options);
  EXPECT_EQ(result.steps[0].loss, 1.0) << "(2, 2): the sum over two ranks";
}

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
      run_engine(json_of(run), options);
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
    run_engine(json_of(run), options);
  }
}

TEST(TensorParallel, GeneratesAndEvaluatesAsOneRank) {
  for (const std::size_t family : {0, 5}) {
    const ModelConfig model = nano_families()[family];
    std::vector<float> expected;
    double expected_loss = 0;
    for (const int tp : {1, 4}) {
      const MeshRun run{.tp = tp, .dp = 1, .stage = 3, .steps = 0};
      RunOptions options = options_of(model, run);
      options.body = [&](Engine& engine, Module&, int rank) {
        const std::vector<std::int32_t> tokens = {1, 5, 60, 2};
        const std::vector<float> logits = engine.next_logits(tokens);
        ASSERT_EQ(logits.size(), 61u);
        const TokenBatch batch = nano_batch({0, 0, 0}, 1, 1, kRows);
        const MicroBatch view = batch.view();
        const double loss = engine.eval_batch({&view, 1});
        if (tp == 1) {
          expected = logits;
          expected_loss = loss;
          return;
        }
        EXPECT_NEAR(loss, expected_loss, kClose * expected_loss) << rank;
        for (std::size_t i = 0; i < logits.size(); ++i)
          EXPECT_NEAR(logits[i], expected[i], 1e-5) << rank;
      };
      run_engine(json_of(run), options);
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
    run_engine(json_of(run), options);
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
    run_engine(json_of(run), options);
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

TEST(TensorParallel, OfAUsersModuleAddsTheBiasOfARowParallelLinearOnce) {
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
