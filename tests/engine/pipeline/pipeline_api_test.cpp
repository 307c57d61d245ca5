// The engine's calls in a pipeline: what evaluation, generation and exports give is what one rank
// gives; what cannot be is refused by name; any values pass between stages; failures end all ranks.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "../api.h"
#include "pipelines.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Outputs {
  double evaluated = 0;
  std::vector<float> logits;
  std::string file;
};

/// Of rank 0; the others must have the same numbers.
Outputs outputs_of(const PipelineRun& run, bool tied) {
  const TemporaryFolder folder;
  RunOptions options = options_of(run, deep_nano(tied, 2), 1);
  std::vector<Outputs> all(static_cast<std::size_t>(run.ranks()));
  options.after = [&](Engine& engine, int rank) {
    Outputs mine;
    std::vector<TokenBatch> batches;
    std::vector<MicroBatch> views;
    const int replica = rank % run.dp;  // stages are the outermost axis
    for (int i = 0; i < 3; ++i) batches.push_back(nano_batch({replica, 7, i}, run.dp, 3, 2));
    for (const TokenBatch& batch : batches) views.push_back(batch.view());
    mine.evaluated = engine.eval_batch(views);
    mine.logits = engine.next_logits(std::vector<std::int32_t>{5, 6, 7});
    engine.save_16bit_model(folder.file("out"));
    if (rank == 0) mine.file = contents(folder.file("out/model.safetensors"));
    all[static_cast<std::size_t>(rank)] = mine;
  };
  run_engine(run.settings(), options);
  for (const Outputs& mine : all) {
    EXPECT_EQ(mine.evaluated, all[0].evaluated);
    EXPECT_EQ(mine.logits, all[0].logits);
  }
  return all[0];
}

TEST(PipelineApi, EvaluatesGeneratesAndSavesAsOneRank) {
  for (const bool tied : {false, true}) {
    for (const int stage : {0, 3}) {
      for (const PipelineSchedule schedule :
           {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zero_bubble_v}) {
        PipelineRun run{.pp = 2, .dp = 2, .stage = stage, .schedule = schedule};
        run.zero = R"(, "stage3_gather_16bit_weights_on_model_save": true)";
        SCOPED_TRACE(run.text());
        const Outputs plain = outputs_of(run.without_stages(), tied);
        const Outputs staged = outputs_of(run, tied);
        if (tied) {
          EXPECT_NEAR(staged.evaluated, plain.evaluated, 1e-5);
          EXPECT_EQ(staged.file.size(), plain.file.size());
          continue;
        }
        EXPECT_EQ(staged.evaluated, plain.evaluated);
        EXPECT_EQ(staged.logits, plain.logits);
        EXPECT_TRUE(staged.file == plain.file);
      }
    }
  }
}

TEST(PipelineApi, RefusesPiecesOfAStepByName) {
  const PipelineRun run{.pp = 2};
  RunOptions options = options_of(run, deep_nano(true, 2));
  options.body = [](Engine& engine, Module&, int) {
    const TokenBatch batch = nano_batch({}, 1, 1, 2);
    EXPECT_TRUE(engine.runs_whole_steps());
    expect_error([&] { engine.forward(batch.view()); }, "forward() in a pipeline of 2 stages");
    expect_error([&] { engine.backward(); }, "backward() in a pipeline of 2 stages");
    expect_error([&] { engine.step(); }, "step() in a pipeline of 2 stages");
    expect_error([&] { engine.loss(); }, "call train_batch()");
    expect_error([&] { engine.no_sync([] {}); }, "no_sync() in a pipeline");
    expect_error([&] { engine.coalesce_grad_reduction([] {}); }, "in a pipeline");
  };
  options.steps = 1;
  run_engine(run.settings(), options);
}

TEST(PipelineApi, SaysWhatAPipelineNeeds) {
  const auto message = [](PipelineRun run, int layers) -> std::string {
    try {
      run_pipeline(run, deep_nano(true, layers));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message({.pp = 4}, 1).find("3 blocks, and the pipeline 4"), std::string::npos);
  PipelineRun listed{.pp = 2};
  listed.partition = "1,1";
  EXPECT_NE(message(listed, 2).find("2,2"), std::string::npos);
  const LogCapture log;
  run_pipeline({.pp = 2, .accumulation = 1}, deep_nano(true, 2), 1);
  EXPECT_EQ(log.with("1 micro-batches of a step on 2 stages").size(), 1u);
}

TEST(PipelineApi, ReadsTokensWhereTheyAreUsed) {
  const PipelineRun run{.pp = 4};
  RunOptions options = options_of(run, deep_nano(true, 4), 1);
  options.engine.sequence_length = kNanoSequence;
  options.after = [](Engine& engine, int rank) {
    EXPECT_EQ(engine.reads_batches(), rank == 0 || rank == 3) << "rank " << rank;
  };
  run_engine(run.settings(), options);
}

/// Four micro-batches, then two, then five.
TEST(PipelineApi, ChangesTheBatchSizeBetweenSteps) {
  const auto train = [](const PipelineRun& run) {
    RunOptions options = options_of(run, deep_nano(false, 2), 3);
    options.body = [dp = run.dp](Engine& engine, Module&, int rank) {
      int step = 0;
      for (const int count : {4, 2, 5}) {
        engine.set_train_batch_size(2 * dp * count);
        EXPECT_EQ(engine.accumulation(), count);
        std::vector<TokenBatch> batches;
        std::vector<MicroBatch> views;
        for (int m = 0; m < count; ++m)
          batches.push_back(nano_batch({rank % dp, step, m}, dp, count, 2));
        for (const TokenBatch& batch : batches) views.push_back(batch.view());
        engine.train_batch(views);
        ++step;
      }
      expect_error([&] { engine.set_train_batch_size(2 * dp * 3 + 1); }, "a multiple of");
    };
    return run_engine(run.settings(), options);
  };
  for (const int stage : {0, 2, 3}) {
    const PipelineRun run{.pp = 2, .dp = 2, .stage = stage};
    SCOPED_TRACE(run.text());
    const RunResult result = train(run);
    EXPECT_TRUE(same_bits(train(run.without_stages()), result));
    EXPECT_EQ(result.steps.back().tokens, 5 * 2 * 2 * kNanoSequence);
  }
}

/// Passes on {hidden, mask, targets}: the mask is of integers and made in the first block, hidden
/// is tokens * weight where it says so. The last block's loss is the mean of hidden.
class MaskBlock final : public Block {
 public:
  enum class Place { first, middle, last };
  MaskBlock(int index, Place place) : index_(index), place_(place) {}
  std::string name() const override { return "mask"; }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = concat("w", index_);
    spec.shape = Shape{1};
    spec.initial = constant_values(1.0f + 0.25f * static_cast<float>(index_));
    return {spec};
  }

  Values forward(BlockContext& context, Values inputs, Saved& saved) override {
    const std::int64_t count = inputs[0].numel();
    Values outputs;
    if (place_ == Place::first) {
      outputs.push_back(context.allocate(DType::f32, Shape{count}));
      outputs.push_back(context.allocate(DType::i32, Shape{count}));
      const ConstView tokens = inputs[0];
      const View hidden = outputs[0], mask = outputs[1];
      context.stream().launch("mask", {reads(tokens), writes(hidden), writes(mask)}, [=] {
        for (std::int64_t i = 0; i < count; ++i) {
          mask.as<std::int32_t>()[i] = tokens.as<std::int32_t>()[i] % 2;
          hidden.as<float>()[i] = static_cast<float>(tokens.as<std::int32_t>()[i]) / 64;
        }
      });
      outputs.push_back(std::move(inputs[1]));
    } else {
      outputs = std::move(inputs);
    }
    Tensor scaled = context.allocate(DType::f32, Shape{place_ == Place::last ? 2 : count});
    const ConstView hidden = outputs[0], mask = outputs[1], weight = context.parameter(0);
    const View out = scaled;
    const bool last = place_ == Place::last;
    context.stream().launch("scale", {reads(hidden), reads(mask), reads(weight), writes(out)}, [=] {
      float sum = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const float on = mask.as<std::int32_t>()[i] != 0 ? weight.as<float>()[0] : 1.0f;
        const float value = hidden.as<float>()[i] * on;
        if (last) sum += value;
        if (!last) out.as<float>()[i] = value;
      }
      if (!last) return;
      out.as<float>()[0] = sum;
      out.as<float>()[1] = static_cast<float>(count);
    });
    if (context.saves()) {
      Tensor kept = context.allocate(DType::f32, Shape{count});
      Tensor kept_mask = context.allocate(DType::i32, Shape{count});
      context.stream().device().copy(context.stream(), kept, outputs[0]);
      context.stream().device().copy(context.stream(), kept_mask, outputs[1]);
      saved.tensors.push_back(std::move(kept));
      saved.tensors.push_back(std::move(kept_mask));
    }
    if (last) outputs.clear();
    if (last) {
      outputs.push_back(std::move(scaled));
    } else {
      outputs[0] = std::move(scaled);
    }
    return outputs;
  }

  Values backward_inputs(BlockContext& context, Values gradients, Saved& saved) override {
    const ConstView hidden = saved.tensors[0], mask = saved.tensors[1];
    const std::int64_t count = hidden.numel();
    const ConstView weight = context.parameter(0), upstream = gradients[0];
    const View dweight = context.write_gradient(0);
    const bool last = place_ == Place::last;
    Values inputs(place_ == Place::first ? 2 : 3);
    Tensor made = context.allocate(DType::f32, Shape{count});
    const View dhidden = made;
    context.stream().launch("scale backward",
                            {reads(hidden), reads(mask), reads(weight), reads(upstream),
                             writes(dweight), writes(dhidden)},
                            [=] {
                              float sum = 0;
                              for (std::int64_t i = 0; i < count; ++i) {
                                const float g =
                                    last ? upstream.as<float>()[0] / static_cast<float>(count)
                                         : upstream.as<float>()[i];
                                const bool on = mask.as<std::int32_t>()[i] != 0;
                                if (on) sum += g * hidden.as<float>()[i];
                                dhidden.as<float>()[i] = g * (on ? weight.as<float>()[0] : 1.0f);
                              }
                              dweight.as<float>()[0] = sum;
                            });
    if (place_ != Place::first) inputs[0] = std::move(made);
    return inputs;
  }
  void backward_weights(BlockContext&, Saved& saved) override { saved.tensors.clear(); }

 private:
  int index_;
  Place place_;
};

class MaskModule final : public Module {
 public:
  MaskModule() {
    using enum MaskBlock::Place;
    for (int i = 0; i < 5; ++i)
      blocks_.push_back(std::make_unique<MaskBlock>(i, i == 0 ? first : i == 4 ? last : middle));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

TEST(PipelineApi, PP02AnyValuesPassBetweenStages) {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zero_bubble_h1}) {
    for (const int pp : {2, 4}) {
      const PipelineRun run{.pp = pp, .schedule = schedule};
      RunOptions options = options_of(run, deep_nano(true));
      options.make_module = [](int) { return std::make_unique<MaskModule>(); };
      const PipelineRun plain = run.without_stages();
      RunOptions alone = options;
      alone.ranks = 1;
      const RunResult result = run_engine(run.settings(), options);
      EXPECT_TRUE(same_bits(run_engine(plain.settings(), alone), result));
      expect_planned_memory(result);
    }
  }
}

TEST(PipelineApi, AFailingStageEndsAll) {
  const PipelineRun run{.pp = 4, .accumulation = 6};
  RunOptions options = options_of(run, deep_nano(true, 4), 3);
  options.body = [](Engine& engine, Module&, int rank) {
    for (int step = 0; step < 3; ++step) {
      std::vector<TokenBatch> batches;
      std::vector<MicroBatch> views;
      for (int m = 0; m < 6; ++m) batches.push_back(nano_batch({0, step, m}, 1, 6, 2));
      if (step == 1 && rank == 3) throw_invalid("stage 3 has had enough");
      for (const TokenBatch& batch : batches) views.push_back(batch.view());
      engine.train_batch(views);
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(message_of([&] { run_engine(run.settings(), options); }), "stage 3 has had enough");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace zero3d::test
