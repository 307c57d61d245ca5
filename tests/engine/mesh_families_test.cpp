// Training on meshes with all axes at once: every family, precision and kind of optimizer has the
// losses of one rank.
#include <gtest/gtest.h>

#include "zero3d/tests/engine/mesh_run.h"

namespace zero3d::test {
namespace {

using enum PipelineSchedule;
constexpr PipelineSchedule kSchedules[] = {one_forward_one_backward, gpipe, interleaved,
                                           zero_bubble_h1, zero_bubble_v};
const std::string kOptimizerOnHost = R"("offload_optimizer": {"device": "cpu"})";
const std::string kAllOnHost = kOptimizerOnHost + R"(, "offload_param": {"device": "cpu"})";

/// Tied and untied; a cover of meshes, ZeRO stages and schedules, of which every family has a
/// pipeline alone and one whose layers are cut.
TEST(MeshFamilies, EveryFamilyTrainsAsOneRank) {
  int at = 0;
  for (ModelConfig model : nano_families()) {
    for (const bool tied : {true, false}) {
      model.tied = tied;
      const RunResult expected = train(model, {.steps = 2});
      for (const auto& [tp, pp, dp] : {std::tuple(1, 2, 2), std::tuple(2, 2, 1)}) {
        const MeshRun run{.tp = tp,
                          .dp = dp,
                          .pp = pp,
                          .schedule = kSchedules[at % 5],
                          .stage = at % 4,
                          .steps = 2};
        ++at;
        if (kSanitized && at % 6 != 0) continue;
        SCOPED_TRACE(concat(name_of(model), tied ? " tied, " : ", ", describe(run)));
        const RunResult result = train(model, run);
        expect_close(expected, result);
        expect_memory_as_planned(result);
      }
    }
  }
}

TEST(MeshFamilies, EveryPrecisionAndOptimizerTrains) {
  const ModelConfig model = nano_families()[0];
  const MeshRun one{.stage = 1, .steps = 2};
  for (const char* optimizer : {R"({"type": "Muon", "params": {"lr": 1e-3, "momentum": 0.9}})",
                                R"({"type": "Lamb", "params": {"lr": 1e-3}})"}) {
    MeshRun alone = one, mesh{.tp = 2, .dp = 2, .pp = 2, .stage = 2, .steps = 2};
    alone.optimizer = mesh.optimizer = optimizer;
    SCOPED_TRACE(optimizer);
    expect_close(train(model, alone), train(model, mesh));
  }
  for (const char* top :
       {R"("bf16": {"enabled": true})", R"("fp16": {"enabled": true, "initial_scale_power": 8})"}) {
    MeshRun alone = one, mesh{.tp = 2, .dp = 2, .pp = 2, .stage = 3, .steps = 2};
    alone.top = mesh.top = top;
    mesh.zero = kAllOnHost;
    EXPECT_TRUE(close(train(model, alone), train(model, mesh), 2e-2)) << top;
  }
}

TEST(MeshFamilies, FiftyStepsOfEverythingAtOnceAreThoseOfOneRank) {
  const ModelConfig model = nano_families()[1];
  const int steps = kSanitized ? 3 : 50;
  const RunResult expected = train(model, {.steps = steps});
  MeshRun run{.tp = 2, .dp = 2, .pp = 2, .stage = 3, .steps = steps};
  run.zero = kAllOnHost;
  run.top = R"("pipeline": {"activation_checkpoint_interval": 1})";
  expect_close(expected, train(model, run));
}

}  // namespace
}  // namespace zero3d::test
