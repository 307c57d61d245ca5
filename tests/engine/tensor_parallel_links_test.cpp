// What tensor-parallel ranks say to each other: sums beside products, split sequences, parts of
// kept inputs, and how many bytes all of it is.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "zero3d/kernels/elementwise.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/tests/engine/mesh_run.h"

namespace zero3d::test {
namespace {

TEST(TensorParallel, ASequenceThatCannotBeSplitIsRefused) {
  const MeshRun run{.tp = 4, .dp = 1, .steps = 1, .top = kSplit};
  RunOptions options = options_of(nano_families()[0], run);
  options.batch = [](const Moment& moment) { return nano_batch(moment, 1, 4, kRows, 6); };
  try {
    run_engine(mesh_json(run), options);
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
  std::string json = mesh_json(run);
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
    const RunResult result = run_engine(mesh_json(run), options);
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

}  // namespace
}  // namespace zero3d::test
