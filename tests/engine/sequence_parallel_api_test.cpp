// Calls of an engine whose ranks share sequences: generation, evaluation, checkpoints, what
// travels, what memory it takes, and what is refused.
#include <gtest/gtest.h>

#include <functional>

#include "zero3d/engine/sequence_parallel.h"
#include "zero3d/tests/engine/sequence_run.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

void expect_says(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(SequencePart, CoversTheSampleInOrderAsEvenlyAsItCan) {
  for (const std::int64_t length : {1, 2, 7, 8, 12, 97})
    for (const int size : {1, 2, 3, 4, 7})
      for (const std::int64_t grain : {1, 2, 3}) {
        if (length < size) continue;
        const std::int64_t unit = length % grain == 0 && length / grain >= size ? grain : 1;
        std::int64_t next = 0;
        for (int rank = 0; rank < size; ++rank) {
          const SequencePart part = sequence_part(length, rank, size, grain);
          EXPECT_EQ(part.first, next);
          EXPECT_EQ(part.count % unit, 0);
          const std::int64_t even = length / unit / size;
          EXPECT_TRUE(part.count / unit == even || part.count / unit == even + 1);
          next += part.count;
        }
        EXPECT_EQ(next, length);
      }
  expect_says(refusal([] { sequence_part(3, 0, 4); }),
              "samples of 3 tokens cannot be cut over sp 4");
}

TEST(SequenceParallel, GeneratesAndEvaluatesAsOneRankWhateverTheLength) {
  for (const std::size_t family : {0, 4}) {
    const ModelConfig model = nano_families()[family];
    std::vector<std::vector<float>> expected;
    double expected_loss = 0;
    for (const SequenceRun& mesh :
         {SequenceRun{}, SequenceRun{.sp = 4, .stage = 3},
          SequenceRun{.sp = 2, .tp = 2, .top = kSplit}, SequenceRun{.sp = 2, .pp = 2}}) {
      SequenceRun run = mesh;
      run.sequence = 12;
      SCOPED_TRACE(concat(name_of(model), ", ", run.name()));
      RunOptions options = options_of(model, run);
      const bool one = run.sp == 1;
      options.body = [&](Engine& engine, Module&, int rank) {
        std::vector<std::vector<float>> logits;
        for (const std::vector<std::int32_t>& tokens :
             {std::vector<std::int32_t>{1, 5, 60, 2, 7}, std::vector<std::int32_t>{9}})
          logits.push_back(engine.next_logits(tokens));
        const TokenBatch batch = nano_batch({0, 0, 0}, 1, 1, kRows, run.sequence);
        const MicroBatch view = batch.view();
        const double loss = engine.eval_batch({&view, 1});
        if (one) {
          expected = logits;
          expected_loss = loss;
          return;
        }
        EXPECT_NEAR(loss, expected_loss, kClose * expected_loss) << rank;
        for (std::size_t prompt = 0; prompt < logits.size(); ++prompt) {
          ASSERT_EQ(logits[prompt].size(), 61u);
          for (std::size_t i = 0; i < logits[prompt].size(); ++i)
            EXPECT_NEAR(logits[prompt][i], expected[prompt][i], 1e-5) << rank;
        }
      };
      run_engine(json_of(run), options);
    }
  }
}

/// Steps [begin, end) on a mesh, from a checkpoint that is there and to one at the end.
RunResult train_steps(const ModelConfig& model, const SequenceRun& run, int begin, int end,
                      const std::string& folder) {
  RunOptions options = options_of(model, run);
  const auto batch_at = options.batch;
  options.body = [=](Engine& engine, Module&, int) {
    if (begin > 0) engine.load_checkpoint(folder);
    for (int step = begin; step < end; ++step) {
      std::vector<TokenBatch> batches;
      for (int micro = 0; micro < run.accumulation(); ++micro)
        batches.push_back(batch_at({engine.model().mesh().rank(Axis::dp), step, micro}));
      std::vector<MicroBatch> views;
      for (const TokenBatch& batch : batches) views.push_back(batch.view());
      engine.train_batch(views);
    }
    engine.save_checkpoint(folder);
  };
  return run_engine(json_of(run), options);
}

TEST(SequenceParallel, GoesOnFromACheckpointOfAnyMesh) {
  const ModelConfig model = nano_families()[0];
  const SequenceRun shared{.sp = 2, .dp = 2, .stage = 3};
  const SequenceRun one;
  const TemporaryFolder straight, folder, other;
  const RunResult expected = train_steps(model, shared, 0, 4, straight.path().string());
  train_steps(model, shared, 0, 2, folder.path().string());
  const RunResult again = train_steps(model, shared, 2, 4, folder.path().string());
  EXPECT_TRUE(same_bits(expected, again));
  // And between meshes, either way.
  train_steps(model, one, 0, 2, other.path().string());
  EXPECT_TRUE(close(expected, train_steps(model, shared, 2, 3, other.path().string()), 1) &&
              close(expected, train_steps(model, one, 3, 4, other.path().string()), kClose));
}

/// Updates at two paces: what is chosen is each rank's own, and with no delay nothing differs.
TEST(SequenceParallel, UpdatesMayBeDelayed) {
  ModelConfig model = nano_gpt2(false);  // of several blocks a matrix
  model.hidden_size = 64;
  model.head_dim = 16;
  model.intermediate_size = 256;
  const SequenceRun run{.sp = 2, .dp = 2, .stage = 2, .steps = 4};
  const auto train_with = [&](const DelayedUpdateSettings& delayed, int stage) {
    SequenceRun staged = run;
    staged.stage = stage;
    RunOptions options = options_of(model, staged);
    TrainSettings settings = settings_of(json_of(staged), options.ranks);
    settings.offload.optimizer.device = OffloadDevice::cpu;
    settings.delayed_updates = delayed;
    options.after = [](Engine& engine, int) { engine.flush_updates(); };
    return run_engine(settings, options);
  };
  const RunResult plain = train_with({}, 2);
  EXPECT_TRUE(
      same_bits(plain, train_with({.update_every = 1, .share = 0.3, .select_every = 1}, 2)));
  const DelayedUpdateSettings late{
      .update_every = 2, .share = 0.3, .select_every = 2, .overlap = true};
  const RunResult delayed = train_with(late, 2);
  EXPECT_FALSE(same_bits(plain, delayed)) << "nothing waits";
  EXPECT_TRUE(same_bits(delayed, train_with(late, 3)));
}

TEST(SequenceParallel, WhatTravelsIsWhatTheFormulaSays) {
  for (const std::size_t family : {0, 4}) {
    ModelConfig model = nano_families()[family];
    if (family == 4) model.kv_heads = 2;  // shared by two ranks each
    const int sp = 4, micro_batches = 2;
    for (const bool recomputes : {false, true}) {
      SequenceRun run{.sp = sp, .stage = 2, .micro_batches = micro_batches};
      if (recomputes) run.top = R"("pipeline": {"activation_checkpoint_interval": 1})";
      const RunResult result = train(model, run);
      SCOPED_TRACE(concat(name_of(model), recomputes ? ", recomputed" : ""));
      // Of a layer: the rows of rank 0, of q, k and v, to the ranks of their heads, and all rows of
      // its heads back; the same with gradients. What stays is counted too.
      const std::int64_t mine = kRows * sequence_part(kOdd, 0, sp).count, all = kRows * kOdd;
      const std::int64_t q = model.heads / sp * model.head_dim;
      const std::int64_t kv = std::max<std::int64_t>(1, model.kv_heads / sp) * model.head_dim;
      const std::int64_t forward = mine * sp * (q + 2 * kv) + all * q;
      const std::int64_t backward = mine * sp * q + all * (q + 2 * kv);
      const std::int64_t layers = micro_batches * model.layers;
      EXPECT_EQ(result.volumes[1].operations.at("all_to_all").bytes,
                4 * layers * (forward * (recomputes ? 2 : 1) + backward));
      // Two numbers of each micro-batch's loss, and as often as forward runs.
      EXPECT_EQ(result.volumes[1].operations.at("all_reduce").bytes, 2 * micro_batches * 2 * 4);
    }
  }
}

TEST(SequenceParallel, MemoryIsAsPlannedAndLessThanOfWholeSamples) {
  for (const std::size_t family : {0, 4}) {
    const ModelConfig model = nano_families()[family];
    const auto activations = [](const RunResult& run, std::size_t rank) {
      return run.estimates[rank][Tier::device][Category::activations];
    };
    const SequenceRun one{.stage = 1, .sequence = 15};
    SequenceRun cut = one;
    cut.sp = 2;
    const RunResult whole = train(model, one), shared = train(model, cut);
    for (const std::size_t rank : {0, 1}) {
      const MemoryEstimate& plan = shared.estimates[rank];
      const std::int64_t exports = plan[Tier::device][Category::gathered_parameters];
      EXPECT_EQ(shared.memory[rank].peak + exports, plan.total()) << rank;
      EXPECT_LT(activations(shared, rank), activations(whole, 0) * 2 / 3) << rank;
      EXPECT_EQ(plan[Tier::pinned][Category::batches], kRows * (7 + (rank == 1)) * 4);
      EXPECT_EQ(shared.pinned_memory[rank].categories[Category::batches].peak,
                plan[Tier::pinned][Category::batches])
          << rank;
    }
  }
}

TEST(SequenceParallel, RanksOfOneGroupMustReadTheSameSamples) {
  const SequenceRun run{.sp = 2};
  RunOptions options = options_of(nano_families()[0], run);
  options.body = [](Engine& engine, Module&, int rank) {
    const TokenBatch batch = nano_batch({rank, 0, 0}, 2, 1, kRows);
    engine.forward(batch.view());
  };
  expect_says(refusal([&] { run_engine(json_of(run), options); }),
              "rank 1 (sp 1) was given another batch than rank 0 (sp 0), with which it shares "
              "sequences");
}

TEST(SequenceParallel, WhatCannotBeCutIsRefusedWithWhatWould) {
  ModelConfig model = nano_families()[1];
  expect_says(refusal([&] { train(model, {.sp = 4, .sequence = 3}); }),
              "samples of 3 tokens cannot be cut over sp 4");
  expect_says(refusal([&] { train(model, {.sp = 3, .tp = 2}); }),
              "its 4 attention heads on each of tp 2 ranks cannot be dealt evenly to sp 3 ranks: "
              "sp 1, 2 or 4 would do");
  model.heads = 6;
  model.kv_heads = 3;
  const std::string both = refusal([&] { train(model, {.sp = 4}); });
  expect_says(both, "its 6 attention heads cannot be dealt evenly to sp 4 ranks");
  expect_says(both, "its 3 key and value heads can neither be dealt evenly to sp 4");
  expect_says(refusal([&] { train(nano_families()[0], {.sp = 2, .tp = 2, .top = kSplit}); }),
              "cannot be split over 2 tensor-parallel ranks; give samples of a multiple of 4");
}

TEST(SequenceParallel, ModulesThatSayNothingOfItAreRefused) {
  RunOptions options = probe_options(
      {4}, [](int, const Moment&) { return 1.0f; }, 2);
  expect_says(refusal([&] {
                run_engine(R"({"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 2,
                               "optimizer": {"type": "SGD", "params": {"lr": 1}}})",
                           options);
              }),
              "its blocks work on whole samples");
}

}  // namespace
}  // namespace zero3d::test
