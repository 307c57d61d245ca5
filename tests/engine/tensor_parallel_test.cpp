// Training on meshes with a tensor-parallel axis: every family's losses are those of one rank, and
// at a fixed mesh the bits are the same whatever ZeRO stage and tier.
#include <gtest/gtest.h>

#include "zero3d/tests/engine/mesh_run.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

/// A cover; tests/tools/mesh_runs.py has all of them, over fifty steps.
TEST(TensorParallel, EveryFamilyTrainsAsOneRank) {
  int at = 0;
  for (const ModelConfig& model : nano_families()) {
    const RunResult expected = train(model, {.steps = 2});
    for (const auto& [tp, dp] : {std::pair(2, 1), std::pair(4, 1), std::pair(2, 2)}) {
      const int stage = ++at % 4;
      if (kSanitized && at % 4 != 0) continue;
      SCOPED_TRACE(concat(name_of(model), ", tp ", tp, ", dp ", dp, ", stage ", stage));
      expect_close(expected, train(model, {.tp = tp, .dp = dp, .stage = stage, .steps = 2}));
    }
  }
}

TEST(TensorParallel, AsSequencesThatAreSplitOutsideOfItsRegions) {
  int at = 0;
  for (const ModelConfig& model : nano_families()) {
    const RunResult expected = train(model, {.steps = 2});
    for (const auto& [tp, dp] : {std::pair(4, 1), std::pair(2, 2)}) {
      const int stage = at++ % 4;
      if (at % (kSanitized ? 4 : 2) == (at / 2) % 2) continue;
      SCOPED_TRACE(concat(name_of(model), ", tp ", tp, ", dp ", dp, ", stage ", stage));
      expect_close(expected,
                   train(model, {.tp = tp, .dp = dp, .stage = stage, .steps = 2, .top = kSplit}));
    }
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
    int at = 0;
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
      if (family == 1 && at++ % 3 != 2) continue;  // the rest is the first family's
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

TEST(TensorParallel, GradientsInPartsAreIdenticalInEveryStageAndTier) {
  ModelConfig model = nano_families()[4];  // norms of heads
  model.kv_heads = 1;                      // and key and value heads that ranks share
  const MeshRun base{.tp = 2, .dp = 2, .stage = 1, .micro_batches = 2, .steps = 2, .top = kSplit};
  const RunResult expected = train(model, base);
  const std::string cpu = R"("offload_optimizer": {"device": "cpu"})";
  for (const auto& [stage, zero] : std::vector<std::pair<int, std::string>>{
           {0, ""},
           {2, R"("reduce_scatter": false)"},
           {2, cpu},
           {3, cpu + R"(, "offload_param": {"device": "cpu"})"}}) {
    SCOPED_TRACE(concat("stage ", stage, " ", zero));
    MeshRun run = base;
    run.stage = stage;
    run.zero = zero;
    EXPECT_TRUE(same_bits(expected, train(model, run)));
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

}  // namespace
}  // namespace zero3d::test
