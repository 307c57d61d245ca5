// GPT-3 175B on 512 ranks, tp 8 x pp 16 x dp 4, as it is planned: every rank's groups, layout,
// operations and gathers, from metadata alone. zero_stage_bench mesh times the same.
#include <gtest/gtest.h>

#include "zero3d/engine/memory_fit.h"
#include "zero3d/models/build.h"
#include "zero3d/parallel/comm/planned_world.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

constexpr GridDegrees kDegrees{.dp = 4, .tp = 8, .pp = 16};
constexpr int kMicroBatches = 32;

ModelConfig gpt3_175b() {
  ModelConfig model = built_in_model_config("gpt2");
  model.hidden_size = 12288;
  model.layers = 96;
  model.heads = model.kv_heads = 96;
  model.head_dim = 128;
  model.intermediate_size = 4 * model.hidden_size;
  model.max_positions = 2048;
  return model;
}

TrainSettings settings_of_all() {
  TrainSettings settings = settings_of(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 32,
          "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},
          "zero_optimization": {"stage": 3}})",
      kDegrees.dp);
  settings.tp = kDegrees.tp;
  settings.pp = kDegrees.pp;
  return settings;
}

TEST(LargeMesh, EveryRankOf512IsPlannedForWithoutTheOthers) {
  const ModelConfig model = gpt3_175b();
  const std::unique_ptr<Module> module = build_model(model);
  const TrainSettings settings = settings_of_all();
  const OptimizerSetup setup(settings.optimizer, settings.schedule, {});
  const auto blocks = declared_parameters(*module, {});
  const Topology topology(512, kDegrees);
  PlanOptions options;
  options.block_names = names_of_blocks(*module);
  std::int64_t owned = 0;  // by all ranks, with padding
  std::int64_t parameters = 0;
  for (int rank = 0; rank < topology.world_size(); rank += kSanitized ? 37 : 1) {
    const std::unique_ptr<Communicator> world = make_planned_world(topology, rank);
    const Mesh mesh(*world, kDegrees);
    ASSERT_EQ(mesh.size(Axis::zero), 4);
    ASSERT_EQ(mesh.size(Axis::model), 128);
    ASSERT_EQ(mesh.size(Axis::stage), 32);
    ASSERT_EQ(mesh.rank(Axis::tp), rank % 8);
    ASSERT_EQ(mesh.rank(Axis::pp), rank / 32);
    const ZeroPlan plan = plan_zero(settings, setup, blocks, mesh, options);
    const PassPlans passes = plan_passes(plan, plan.memory.total(), TrackingResource::kUnlimited);
    ASSERT_GT(passes.arena_elements(), 0);
    // Forward and backward of every block, and what goes over one border or two.
    const bool end = mesh.rank(Axis::pp) % 15 == 0;
    std::size_t moves = 0, work = 0;
    for (const Op& op : plan.training)
      (is_transfer(op.kind) ? moves : work) += uses_parameters(op.kind) || is_transfer(op.kind);
    ASSERT_EQ(moves, kMicroBatches * (end ? 2u : 4u));
    ASSERT_EQ(work, kMicroBatches * 2u * static_cast<std::size_t>(plan.stage.blocks));
    for (const Unit& unit : plan.layout.units()) owned += unit.shard;
    parameters = plan.model_layout().numel();
  }
  EXPECT_GT(parameters, std::int64_t{174'000'000'000});
  if (kSanitized) return;
  // Norms and biases are held by all eight, the tied table by both ends: little beside 175 billion.
  EXPECT_GE(owned, parameters);
  EXPECT_LT(static_cast<double>(owned), 1.01 * static_cast<double>(parameters));
}

TEST(LargeMesh, NothingTravelsBetweenPlannedRanks) {
  const std::unique_ptr<Communicator> world = make_planned_world(Topology(4, {.dp = 4}), 2);
  EXPECT_EQ(world->rank(), 2);
  EXPECT_EQ(world->size(), 4);
  EXPECT_THROW(world->exchange(""), Error);
}

}  // namespace
}  // namespace zero3d::test
