// Training on meshes with all axes at once, replicas of pipelines whose layers ranks share: the
// bits are the same whatever ZeRO stage, tier and schedule, exports are those of one rank, and a
// bad parameter is named.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <sstream>

#include "zero3d/tests/engine/mesh_run.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

using enum PipelineSchedule;
constexpr PipelineSchedule kSchedules[] = {one_forward_one_backward, gpipe, interleaved,
                                           zero_bubble_h1, zero_bubble_v};
const std::string kOptimizerOnHost = R"("offload_optimizer": {"device": "cpu"})";
const std::string kAllOnHost = kOptimizerOnHost + R"(, "offload_param": {"device": "cpu"})";

TEST(WholeMesh, StagesTiersAndSchedulesAreIdenticalAtAFixedMesh) {
  ModelConfig model = nano_families()[0];
  model.tied = false;  // in one stage with zb-v, in two without: sums of another order
  const MeshRun base{.tp = 2, .dp = 2, .pp = 2, .micro_batches = 2, .steps = 3};
  const RunResult expected = train(model, base);
  const TemporaryFolder swap;
  const std::string drive =
      concat(R"("offload_optimizer": {"device": "nvme", "nvme_path": ")", swap.file("swap"), "\"}");
  for (const auto& [stage, schedule, zero] :
       std::vector<std::tuple<int, PipelineSchedule, std::string>>{
           {1, gpipe, ""},
           {2, zero_bubble_h1, ""},
           {3, interleaved, ""},
           {1, zero_bubble_v, kOptimizerOnHost},
           {3, one_forward_one_backward, kAllOnHost},
           {3, zero_bubble_h1, kAllOnHost},
           {3, gpipe, drive},
           {2, interleaved, R"("overlap_comm": false, "reduce_bucket_size": 100)"},
           {3, one_forward_one_backward, R"("stage3_prefetch_bucket_size": 0)"},
           {3, gpipe, R"("mics_shard_size": 2)"},
           {3, zero_bubble_v, R"("zero_hpz_partition_size": 2)"}}) {
    if (kSanitized && stage != 3) continue;
    MeshRun run = base;
    run.stage = stage;
    run.schedule = schedule;
    run.zero = zero;
    SCOPED_TRACE(describe(run));
    const RunResult result = train(model, run);
    EXPECT_TRUE(same_bits(expected, result));
    expect_memory_as_planned(result);
  }
}

/// Several micro-batches to a rank: ZeRO stages 0 and 1 are one pair, 2 and 3 another.
TEST(WholeMesh, SchedulesAreIdenticalOverMicroBatches) {
  const ModelConfig model = nano_families()[1];
  for (const auto& [first, second] : {std::pair{0, 1}, std::pair{2, 3}}) {
    const MeshRun base{
        .tp = 2, .dp = 1, .pp = 2, .stage = first, .micro_batches = 4, .steps = 2, .top = kSplit};
    const RunResult expected = train(model, base);
    for (const PipelineSchedule schedule : kSchedules) {
      if (kSanitized && schedule != zero_bubble_h1) continue;
      MeshRun run = base;
      run.stage = second;
      run.schedule = schedule;
      SCOPED_TRACE(describe(run));
      EXPECT_TRUE(same_bits(expected, train(model, run)));
    }
  }
}

/// Parameters stay gathered from one micro-batch to the next where the budget has room, and no bit
/// depends on it.
TEST(WholeMesh, GathersOnceAStepOrAsOftenAsTheBudgetAsks) {
  ModelConfig model = nano_families()[1];
  model.layers = 8;
  const MeshRun run{.dp = 2, .pp = 2, .stage = 3, .micro_batches = 8, .steps = 2};
  const auto gathered = [](const RunResult& result) {
    return CommVolume(result.volumes.back()).operations["all_gather"].elements;
  };
  const RunResult roomy = train(model, run);
  std::size_t fullest = 0;  // the rank that the budget is too small for
  for (std::size_t rank = 1; rank < roomy.estimates.size(); ++rank)
    if (roomy.estimates[rank].total() > roomy.estimates[fullest].total()) fullest = rank;
  const auto arena = [fullest](const RunResult& result) {
    return result.estimates[fullest][Tier::device][Category::gathered_parameters];
  };
  RunOptions narrow = options_of(model, run);
  narrow.budget_bytes = roomy.estimates[fullest].total() - arena(roomy) / 3;
  const RunResult clipped = run_engine(settings_of(run), narrow);
  EXPECT_TRUE(same_bits(roomy, clipped));
  EXPECT_LT(arena(clipped), arena(roomy));
  EXPECT_LE(clipped.estimates[fullest].total(), narrow.budget_bytes);
  MeshRun apart = run;
  apart.zero = R"("stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0,
                  "stage3_prefetch_bucket_size": 0)";
  const RunResult again = train(model, apart);
  EXPECT_TRUE(same_bits(roomy, again));
  EXPECT_GT(gathered(again), 4 * gathered(roomy));
}

TEST(WholeMesh, ExportsAreTheFilesOfOneRank) {
  const ModelConfig model = nano_families()[0];
  std::string expected;
  for (const auto& [tp, pp, dp] : {std::tuple(1, 1, 1), std::tuple(2, 2, 2), std::tuple(2, 4, 1)}) {
    const TemporaryFolder folder;
    const MeshRun run{.tp = tp,
                      .dp = dp,
                      .pp = pp,
                      .stage = 3,
                      .steps = 0,
                      .zero = R"("stage3_gather_16bit_weights_on_model_save": true)"};
    SCOPED_TRACE(describe(run));
    RunOptions options = options_of(model, run);
    options.body = [&](Engine& engine, Module&, int) {
      EXPECT_TRUE(engine.save_16bit_model(folder.file("out")));
    };
    run_engine(settings_of(run), options);
    std::ifstream in(folder.file("out/model.safetensors"), std::ios::binary);
    std::stringstream bytes;
    bytes << in.rdbuf();
    if (expected.empty()) expected = bytes.str();
    EXPECT_GT(expected.size(), 1000u);
    EXPECT_TRUE(bytes.str() == expected);
  }
}

TEST(WholeMesh, ABadParameterIsNamedWithTheStageThatHasIt) {
  const MeshRun run{.tp = 2, .dp = 2, .pp = 2, .stage = 2, .micro_batches = 2, .steps = 0};
  RunOptions options = options_of(nano_families()[0], run);
  options.engine.max_consecutive_skips = 1;
  options.body = [](Engine& engine, Module&, int) {
    engine.model().with_parameters(
        {"transformer.h.1.mlp.c_fc.bias"}, 0, [](const ParameterSpec&, View whole) {
          whole.as<float>()[whole.numel() - 1] = std::numeric_limits<float>::quiet_NaN();
        });
    const TokenBatch batch = nano_batch({0, 0, 0}, 1, 1, kRows);
    const MicroBatch view = batch.view();
    engine.train_batch({&view, 1});
  };
  try {
    run_engine(settings_of(run), options);
    FAIL() << "trained on a NaN";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("NaN in the averaged gradient of"), std::string::npos) << message;
    EXPECT_NE(message.find(", pp "), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace zero3d::test
