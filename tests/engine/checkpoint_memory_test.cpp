// Saves that training does not wait for: their files to the byte, whatever tier the state lies on;
// and the memory of saves and loads, which is in the plan.
#include <gtest/gtest.h>

#include <filesystem>

#include "api.h"
#include "saved_tensors.h"
#include "zero3d/core/output_file.h"
#include "zero3d/engine/checkpoint/checkpoint_folder.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

namespace fs = std::filesystem;

struct Trial {
  const char* name;
  const char* top;
  const char* zero;  ///< "@" is a folder.
  bool freezes = false;
};

constexpr const char* kBf16 = R"("bf16": {"enabled": true})";
constexpr const char* kDrives = R"("offload_optimizer": {"device": "nvme", "nvme_path": "@/nvme",
    "buffer_count": 3}, "sub_group_size": 3000)";
constexpr const char* kAllOnDrives = R"("offload_optimizer": {"device": "nvme", "nvme_path":
    "@/nvme", "buffer_count": 3}, "offload_param": {"device": "nvme", "nvme_path": "@/nvme",
    "max_in_cpu": 1000}, "sub_group_size": 3000)";
constexpr const char* kParametersOnHost = R"("offload_optimizer": {"device": "nvme", "nvme_path":
    "@/nvme", "buffer_count": 3}, "offload_param": {"device": "cpu"}, "sub_group_size": 3000)";
constexpr Trial kTiers[] = {
    {"device", kBf16, R"("sub_group_size": 3000)"},
    {"host", "", R"("offload_optimizer": {"device": "cpu"}, "sub_group_size": 3000)"},
    {"drives", kBf16, kDrives},
    {"parameters on drives", "", kAllOnDrives, true},
    {"masters on the host", "", kParametersOnHost, true}};

std::string json_on(const Trial& tier, const TemporaryFolder& folder) {
  std::string json = json_of(3, kAccumulation, tier.top, tier.zero);
  for (std::size_t at; (at = json.find('@')) != std::string::npos;)
    json.replace(at, 1, folder.path().string());
  return json;
}

RunOptions options_on(const Trial& tier) {
  RunOptions options = nano();
  if (tier.freezes) {
    options.engine.adjust = [](ParameterSpec& spec) {
      spec.frozen = spec.name.find("h.0.") != std::string::npos;
    };
  }
  return options;
}

TEST(CheckpointMemory, TrainingThatGoesOnChangesNoByteOfAFile) {
  for (const Trial& tier : kTiers) {
    const TemporaryFolder folder;
    RunOptions options = options_on(tier);
    options.body = [&](Engine& engine, Module&, int rank) {
      train_batches(engine, rank, 2);
      SaveCheckpointOptions save;
      save.tag = "waits";
      engine.save_checkpoint(folder.path().string(), save);
      save.tag = "goes on";
      save.asynchronous = true;
      engine.save_checkpoint(folder.path().string(), save);
      train_batches(engine, rank, 3);
      engine.finish_checkpoint();
    };
    run_engine(json_on(tier, folder), options);
    for (const char* file : {"rank-00000.bin", "rank-00001.bin"}) {
      const std::string waits = read_file(folder.file(concat("waits/", file)));
      EXPECT_GT(waits.size(), 1000u);
      EXPECT_TRUE(waits == read_file(folder.file(concat("goes on/", file))))
          << tier.name << " " << file;
    }
  }
}

/// Peaks of device and host memory of one rank.
struct Peaks {
  std::int64_t device = 0;
  std::int64_t host = 0;
};

std::int64_t held(Engine& engine, std::initializer_list<Tier> tiers) {
  std::int64_t bytes = 0;
  for (const Tier tier : tiers) bytes += engine.model().device().memory(tier).use().current;
  return bytes;
}

Peaks peaks_of(Engine& engine) {
  Peaks peaks{engine.model().device().memory().use().peak, 0};
  for (const Tier tier : kHostTiers) peaks.host += engine.model().device().memory(tier).use().peak;
  return peaks;
}

TEST(CheckpointMemory, SavesAndLoadsStayWithinThePlan) {
  for (const Trial& tier : kTiers) {
    for (const bool asynchronous : {false, true}) {
      const TemporaryFolder folder;
      RunOptions options = options_on(tier);
      options.engine.sequence_length = 4;
      options.engine.checkpoints = {true, asynchronous, true};
      options.body = [&](Engine& engine, Module&, int rank) {
        const MemoryEstimate plan = engine.memory_estimate(2, 4);
        train_batches(engine, rank, 1);
        SaveCheckpointOptions save;
        save.asynchronous = asynchronous;
        const std::int64_t before = held(engine, kHostTiers);
        engine.save_checkpoint(folder.path().string(), save);
        if (asynchronous) {
          EXPECT_GT(held(engine, kHostTiers), before);
        }
        train_batches(engine, rank, 2);
        engine.finish_checkpoint();
        engine.save_checkpoint(folder.path().string());
        engine.load_checkpoint(folder.path().string());
        EXPECT_EQ(held(engine, kHostTiers), before);
        EXPECT_LE(peaks_of(engine).host, plan.total(kHostTiers)) << tier.name;
        EXPECT_EQ(engine.memory_estimate(2, 4).total(kHostTiers), plan.total(kHostTiers))
            << tier.name << ": nothing joined it late";
      };
      run_engine(json_on(tier, folder), options);
    }
  }
}

/// CKPT-01: beside the steady state, three pieces of one tensor of a record, where a bucket has
/// whole gradients of several.
TEST(CheckpointMemory, ALoadTakesAFewPiecesBesideTheSteadyState) {
  for (const Trial& tier : kTiers) {
    const TemporaryFolder folder;
    RunOptions options = options_on(tier);
    options.body = [&](Engine& engine, Module&, int rank) {
      train_batches(engine, rank, 1);
      engine.save_checkpoint(folder.path().string());
    };
    run_engine(json_on(tier, folder), options);
    options.body = [&](Engine& engine, Module&, int rank) {
      const std::int64_t device = held(engine, {Tier::device});
      const std::int64_t host = held(engine, kHostTiers);
      const Peaks before = peaks_of(engine);
      engine.load_checkpoint(folder.path().string());
      const Peaks after = peaks_of(engine);
      constexpr std::int64_t kPieces = 3 * 3072 * 4;
      EXPECT_LE(after.device, std::max(before.device, device + kPieces)) << tier.name;
      EXPECT_LE(after.host, std::max(before.host, host + kPieces)) << tier.name;
      EXPECT_LE(after.host, engine.model().memory().total(kHostTiers)) << "it joined the plan";
      EXPECT_EQ(held(engine, {Tier::device}), device);
      EXPECT_EQ(held(engine, kHostTiers), host);
      train_batches(engine, rank, 1);
    };
    run_engine(json_on(tier, folder), options);
  }
}

TEST(CheckpointMemory, WithoutRoomTrainingWaitsAndIsTold) {
  const TemporaryFolder folder;
  RunOptions options = nano();
  const std::int64_t needed =
      run_engine(json_of(2, kAccumulation), options).estimates[0].total(kHostTiers);
  options.host_budget_bytes = needed + 3 * 4096;
  options.engine.checkpoints = {true, true, false};
  LogCapture log;
  options.body = [&](Engine& engine, Module&, int rank) {
    EXPECT_LE(engine.model().memory().total(kHostTiers), options.host_budget_bytes);
    train_batches(engine, rank, 1);
    SaveCheckpointOptions save;
    save.asynchronous = true;
    const std::string path = engine.save_checkpoint(folder.path().string(), save);
    EXPECT_TRUE(is_checkpoint(path));
    train_batches(engine, rank, 1);
    engine.save_checkpoint(folder.path().string(), save);
  };
  run_engine(json_of(2, kAccumulation), options);
  EXPECT_EQ(log.with("training waits for the save").size(), 1u);
  read_saved(folder.file("global_step1"));
}

TEST(CheckpointMemory, WithoutAnyRoomTheSaveFailsAndTrainingGoesOn) {
  const TemporaryFolder folder;
  RunOptions options = nano();
  options.host_budget_bytes =
      run_engine(json_of(2, kAccumulation), options).estimates[0].total(kHostTiers);
  options.body = [&](Engine& engine, Module&, int rank) {
    train_batches(engine, rank, 1);
    {
      TrackingResource& memory = engine.model().device().memory(Tier::pinned);
      const Tensor all(memory, kNoStream, DType::u8, Shape{memory.available()}, Category::other);
      try {
        engine.save_checkpoint(folder.path().string());
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
      }
    }
    train_batches(engine, rank, 1);
  };
  run_engine(json_of(2, kAccumulation), options);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace zero3d::test
