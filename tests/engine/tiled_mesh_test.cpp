// Tiles where ranks share a model: stages of a pipeline run them to the bits of one rank,
// checkpoints hold whole parameters whatever the cut, and layers that tensor parallelism cuts are
// refused.
#include <gtest/gtest.h>

#include "pipeline/pipelines.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/models/build.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

RunResult run_tiled(const PipelineRun& run, const ModelConfig& model, const TileSettings& tiles) {
  RunOptions options = options_of(run, model);
  options.make_module = [model, tiles](int) { return build_model(model, tiles); };
  return run_engine(run.settings(), options);
}

TEST(TiledPipeline, GivesTheBitsWithoutStages) {
  const TileSettings tiles{2, 3};
  for (const bool tied : {true, false}) {
    const ModelConfig model = deep_nano(tied, 3);
    for (const int stage : {0, 1, 3}) {
      if (kSanitized && (tied != (stage == 3))) continue;
      const RunResult plain =
          run_tiled(PipelineRun{.pp = 1, .dp = 2, .stage = stage}, model, tiles);
      RunResult first;
      for (const PipelineSchedule schedule :
           {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zero_bubble_h1}) {
        const PipelineRun run{.pp = 2, .dp = 2, .stage = stage, .schedule = schedule};
        SCOPED_TRACE(concat(run.text(), tied ? ", tied" : ""));
        RunResult result = run_tiled(run, model, tiles);
        // Of a tied table the stages' parts are summed after micro-batches.
        EXPECT_TRUE(tied ? close(plain, result, 1e-6) : same_bits(plain, result));
        if (!first.steps.empty()) {
          EXPECT_TRUE(same_bits(first, result));
        }
        expect_planned_memory(result);
        first = std::move(result);
      }
    }
  }
}

/// Recomputation, and several chunks on a rank.
TEST(TiledPipeline, GivesThemInOtherOrders) {
  const ModelConfig model = deep_nano(false, 4);
  PipelineRun run{.pp = 1, .stage = 3};
  run.top = R"("pipeline": {"activation_checkpoint_interval": 1}, )";
  const RunResult plain = run_tiled(run, model, {3, 2});
  run.pp = 2;
  EXPECT_TRUE(same_bits(plain, run_tiled(run, model, {3, 2})));
  run.schedule = PipelineSchedule::interleaved;
  run.virtual_stages = 2;
  const RunResult chunks = run_tiled(run, model, {3, 2});
  EXPECT_TRUE(same_bits(plain, chunks));
  expect_planned_memory(chunks);
}

/// Saved in tiles, saved again by the uncut model, and gone on with in tiles, in other ones or in
/// stages: as if nothing had been between.
TEST(TiledCheckpoint, HoldsWholeParameters) {
  const TemporaryFolder folder;
  const std::string tiled = folder.file("tiled"), uncut = folder.file("uncut");
  const ModelConfig model = nano_gpt2(false);
  const auto run_body = [&](const PipelineRun& run, const TileSettings& tiles,
                            const std::function<void(Engine&, int)>& body) {
    RunOptions options = options_of(run, model);
    options.make_module = [&](int) { return build_model(model, tiles); };
    options.body = [&](Engine& engine, Module&, int rank) { body(engine, rank); };
    return run_engine(run.settings(), options);
  };
  const auto train = [&](Engine& engine, int step) {
    std::vector<TokenBatch> batches;
    std::vector<MicroBatch> views;
    for (int micro = 0; micro < 4; ++micro)
      batches.push_back(nano_batch({0, step, micro}, 1, 4, 2));
    for (const TokenBatch& batch : batches) views.push_back(batch.view());
    engine.train_batch(views);
  };
  const PipelineRun alone{.pp = 1, .stage = 3};
  const RunResult straight = run_body(alone, {3, 2}, [&](Engine& engine, int) {
    train(engine, 0);
    engine.save_checkpoint(tiled);
    train(engine, 1);
  });
  run_body(PipelineRun{.pp = 1, .stage = 1}, {1, 1}, [&](Engine& engine, int) {
    engine.load_checkpoint(tiled);
    engine.save_checkpoint(uncut);
    train(engine, 1);
  });
  for (const int pp : {1, 2}) {
    const RunResult resumed =
        run_body(PipelineRun{.pp = pp, .stage = 3}, {3, 2}, [&](Engine& engine, int) {
          engine.load_checkpoint(uncut);
          train(engine, 1);
        });
    EXPECT_TRUE(same_state(straight.state, resumed.state)) << "in " << pp << " stages";
  }
}

/// In the file, and where an engine is made of such a module.
TEST(TiledTensorParallel, IsRefused) {
  const std::string json = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"},
      "zero3d": {"tp": 2, "linear_tiles": 1, "head_tiles": 2}})";
  LoadOptions load;
  load.ranks = 2;
  const LoadResult loaded = load_config_text(json, "test config", load);
  std::string message;
  for (const ConfigMessage& problem : loaded.train_errors) message += problem.path + "\n";
  EXPECT_NE(message.find("zero3d.head_tiles"), std::string::npos) << message;
  EXPECT_EQ(message.find("zero3d.linear_tiles"), std::string::npos) << message;
  TrainSettings settings = PipelineRun{.pp = 1}.settings();
  settings.tp = 2;
  RunOptions options = options_of(PipelineRun{.pp = 1, .dp = 2}, nano_gpt2(true));
  options.make_module = [](int) { return build_model(nano_gpt2(true), {2, 1}); };
  const std::string refused = message_of<ConfigError>([&] { run_engine(settings, options); });
  EXPECT_NE(refused.find("linear_tiles 2"), std::string::npos) << refused;
}

}  // namespace
}  // namespace zero3d::test
