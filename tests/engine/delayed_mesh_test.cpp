// Updates at two paces on meshes of stages and of ranks that share layers, and without the
// checkpoints that would not hold them.
#include <gtest/gtest.h>

#include "mesh_run.h"
#include "pipeline/pipelines.h"
#include "zero3d/core/error.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

/// Its matrices, and the positions that tensor parallelism leaves whole, have 4 to 16 blocks.
ModelConfig blocky_model(bool tied) {
  ModelConfig model = nano_gpt2(tied);
  model.hidden_size = 64;
  model.head_dim = 16;
  model.intermediate_size = 256;
  model.max_positions = 64;
  return model;
}

const DelayedUpdateSettings kPlain;
const DelayedUpdateSettings kLate = {
    .update_every = 2, .share = 0.3, .select_every = 2, .overlap = true};
const DelayedUpdateSettings kEachStep = {.update_every = 1, .share = 0.3, .select_every = 1};

RunResult train_on(TrainSettings settings, RunOptions options,
                   const DelayedUpdateSettings& delayed) {
  settings.offload.optimizer.device = OffloadDevice::cpu;
  settings.delayed_updates = delayed;
  options.steps = 4;
  options.after = [](Engine& engine, int) { engine.flush_updates(); };
  return run_engine(settings, options);
}

RunResult train_stages(const PipelineRun& run, bool tied, const DelayedUpdateSettings& delayed) {
  return train_on(run.settings(), options_of(run, blocky_model(tied)), delayed);
}

/// Stages cut between units, and blocks are chosen within them.
TEST(DelayedMesh, StagesChangeNoBit) {
  for (const int stage : {1, 3}) {
    const PipelineRun run{.pp = 2, .dp = 2, .stage = stage, .accumulation = 2};
    SCOPED_TRACE(run.text());
    const RunResult expected = train_stages(run.without_stages(), false, kLate);
    const RunResult result = train_stages(run, false, kLate);
    EXPECT_TRUE(same_bits(expected, result));
    EXPECT_FALSE(same_bits(train_stages(run, false, kPlain), result)) << "nothing waits";
    expect_planned_memory(result);
  }
}

/// Both stages choose the same of the table (the collector compares their copies).
TEST(DelayedMesh, StagesHoldTiedTablesAlike) {
  PipelineRun run{.pp = 2, .dp = 2, .stage = 2, .accumulation = 2};
  const RunResult result = train_stages(run, true, kLate);
  EXPECT_TRUE(same_bits(train_stages(run, true, kPlain), train_stages(run, true, kEachStep)));
  run.schedule = PipelineSchedule::gpipe;
  EXPECT_TRUE(same_bits(result, train_stages(run, true, kLate)));
}

/// What ranks share is chosen alike on all of them (the collector compares), stages cut alike.
TEST(DelayedMesh, TensorParallelRanksChooseAlike) {
  const auto run = [](int stage, const char* top, const DelayedUpdateSettings& delayed) {
    MeshRun mesh{.tp = 2, .dp = 2, .stage = stage, .micro_batches = 2};
    mesh.top = top;
    return train_on(settings_of(mesh_json(mesh), 4), options_of(blocky_model(true), mesh), delayed);
  };
  for (const char* top : {"", kSplit}) {
    const RunResult expected = run(1, top, kLate);
    EXPECT_TRUE(same_bits(expected, run(2, top, kLate)));
    EXPECT_TRUE(same_bits(run(2, top, kPlain), run(2, top, kEachStep)));
    EXPECT_FALSE(same_bits(run(2, top, kPlain), expected)) << "nothing waits";
    for (std::size_t rank = 0; rank < expected.memory.size(); ++rank) {
      const MemoryEstimate& plan = expected.estimates[rank];
      const std::int64_t exports = plan[Tier::device][Category::gathered_parameters];
      EXPECT_EQ(expected.memory[rank].peak + exports, plan.total()) << "rank " << rank;
    }
  }
}

TEST(DelayedMesh, CheckpointsAreRefused) {
  const TemporaryFolder folder;
  const PipelineRun plain{.pp = 1, .dp = 1, .stage = 2, .accumulation = 1};
  const auto run = [&](const DelayedUpdateSettings& delayed, bool saves) {
    RunOptions options = options_of(plain, blocky_model(true));
    options.after_step = [&folder, saves](Engine& engine, int, int step) {
      if (step != 0) return;
      saves ? void(engine.save_checkpoint(folder.file("saved")))
            : void(engine.load_checkpoint(folder.file("saved")));
    };
    train_on(plain.settings(), options, delayed);
  };
  run(kPlain, true);
  for (const bool saves : {true, false}) {
    try {
      run(kLate, saves);
      FAIL() << saves;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << error.what();
      EXPECT_NE(std::string(error.what())
                    .find(saves ? "save_checkpoint() with TrainSettings::delayed_updates"
                                : "load_checkpoint() with TrainSettings::delayed_updates"),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace zero3d::test
