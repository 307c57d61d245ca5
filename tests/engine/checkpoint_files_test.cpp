// Checkpoints as files: whole or not there, damaged ones and those of other models refused on every
// rank, old ones removed, calls at the wrong time refused.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
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

using Body = std::function<void(Engine&, int rank)>;

void on_engine(const Body& body, const std::string& json = json_of(2, kAccumulation),
               ModelConfig model = nano_gpt2(true)) {
  RunOptions options = nano_options(model, kRanks, kAccumulation);
  options.body = [&](Engine& engine, Module&, int rank) { body(engine, rank); };
  run_engine(json, options);
}

/// A checkpoint of the first step.
std::string make_checkpoint(const TemporaryFolder& folder) {
  on_engine([&](Engine& engine, int rank) {
    train_batches(engine, rank, 1);
    engine.save_checkpoint(folder.path().string());
  });
  return folder.file("global_step1");
}

/// What loading it says, on every rank, and that the engine trains on where nothing was changed.
std::string refusal(const std::string& folder, LoadCheckpointOptions options = {},
                    const std::string& json = json_of(2, kAccumulation),
                    ModelConfig model = nano_gpt2(true)) {
  std::string messages[kRanks];
  on_engine(
      [&](Engine& engine, int rank) {
        try {
          engine.load_checkpoint(folder, options);
        } catch (const Error& error) {
          messages[rank] = error.what();
        }
        train_batches(engine, rank, 1);
        EXPECT_EQ(engine.global_steps(), 1);
      },
      json, model);
  EXPECT_EQ(messages[0], messages[1]);
  return messages[0];
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
}

TEST(CheckpointFiles, ATagAndLatestNameThem) {
  const TemporaryFolder folder;
  on_engine([&](Engine& engine, int rank) {
    train_batches(engine, rank, 1);
    SaveCheckpointOptions save;
    save.tag = "mine";
    save.client_state.set("epoch", JsonValue(3));
    engine.save_checkpoint(folder.path().string(), save);
    save.tag.clear();
    save.save_latest = false;
    engine.save_checkpoint(folder.path().string(), save);
  });
  EXPECT_EQ(read_file(folder.file("latest")), "mine");
  on_engine([&](Engine& engine, int rank) {
    LoadCheckpointOptions load;
    load.tag = "global_step1";
    EXPECT_EQ(engine.load_checkpoint(folder.path().string(), load).path,
              folder.file("global_step1"));
    const LoadedCheckpoint loaded = engine.load_checkpoint(folder.path().string());
    EXPECT_EQ(loaded.path, folder.file("mine"));
    EXPECT_EQ(loaded.client_state.find("epoch")->as_integer(), 3);
    EXPECT_EQ(engine.load_checkpoint(folder.file("mine")).path, folder.file("mine"));
    train_batches(engine, rank, 1);
  });
}

TEST(CheckpointFiles, ParametersAlone) {
  const TemporaryFolder folder;
  make_checkpoint(folder);
  on_engine([&](Engine& engine, int rank) {
    LoadCheckpointOptions load;
    load.load_module_only = true;
    const LoadedCheckpoint loaded = engine.load_checkpoint(folder.path().string(), load);
    EXPECT_TRUE(loaded.client_state.members().empty());
    EXPECT_EQ(engine.global_steps(), 0);
    load = {};
    load.load_lr_scheduler_states = false;
    engine.load_checkpoint(folder.path().string(), load);
    EXPECT_EQ(engine.state().schedule_steps, 0);
    EXPECT_EQ(engine.state().optimizer_steps, 1);
    train_batches(engine, rank, 1);
    EXPECT_EQ(engine.global_steps(), 2);
  });
}

TEST(CheckpointFiles, StatesOfTheOptimizerMayBeLeftThere) {
  const TemporaryFolder folder;
  make_checkpoint(folder);
  on_engine([&](Engine& engine, int) {
    LoadCheckpointOptions load;
    load.load_optimizer_states = false;
    engine.load_checkpoint(folder.path().string(), load);
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_EQ(engine.state().optimizer_steps, 0);
    SaveCheckpointOptions save;
    save.tag = "again";
    engine.save_checkpoint(folder.path().string(), save);
  });
  const SavedTensors before = read_saved(folder.file("global_step1"));
  const SavedTensors after = read_saved(folder.file("again"));
  for (const auto& [name, bytes] : after.tensors) {
    if (name.find("/weight") != std::string::npos)
      EXPECT_EQ(bytes, before.tensors.at(name)) << name;
    else
      EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size())) << name;
  }
}

TEST(CheckpointFiles, NothingThereIsSaidAndNothingElse) {
  const TemporaryFolder folder;
  LogCapture log;
  on_engine([&](Engine& engine, int) {
    EXPECT_EQ(engine.load_checkpoint(folder.path().string()).path, "");
    EXPECT_THROW(engine.load_checkpoint(folder.file("none")), Error);
    LoadCheckpointOptions load;
    load.tag = "none";
    EXPECT_THROW(engine.load_checkpoint(folder.path().string(), load), Error);
  });
}

TEST(CheckpointFiles, DamageIsRefusedOnEveryRank) {
  const TemporaryFolder folder;
  const std::string path = make_checkpoint(folder);
  const std::string manifest = path + "/zero3d.json";
  const std::string whole = read_file(manifest);
  fs::resize_file(path + "/rank-00001.bin", 100);
  expect_words(refusal(folder.path().string()), {"rank-00001.bin", "expected", "found 100"});
  fs::remove(path + "/rank-00001.bin");
  expect_words(refusal(folder.path().string()), {"rank-00001.bin", "cannot open"});
  write_text_file(manifest, whole.substr(0, whole.size() / 2));
  expect_words(refusal(folder.path().string()), {"zero3d.json", "no whole manifest"});
  write_text_file(folder.file("latest"), "global_step9");
  expect_words(refusal(folder.path().string()), {"global_step9", "latest"});
}

TEST(CheckpointFiles, AFlippedBitIsFoundAndEndsTheRun) {
  const TemporaryFolder folder;
  const std::string path = make_checkpoint(folder);
  std::string bytes = read_file(path + "/rank-00000.bin");
  bytes[bytes.size() / 2] ^= 4;
  write_text_file(path + "/rank-00000.bin", bytes);
  EXPECT_THROW(read_saved(path), IoError);
  std::string message;
  try {
    on_engine([&](Engine& engine, int) { engine.load_checkpoint(folder.path().string()); });
  } catch (const Error& error) {
    message = error.what();
  }
  expect_words(message, {"rank-00000.bin", "checksum", "expected"});
}

TEST(CheckpointFiles, AnotherModelIsRefused) {
  const TemporaryFolder folder;
  make_checkpoint(folder);
  ModelConfig wider = nano_gpt2(true);
  wider.intermediate_size = 32;
  expect_words(refusal(folder.path().string(), {}, json_of(2, kAccumulation), wider),
               {"does not go with", "[16, 64]", "[16, 32]"});
  ModelConfig deeper = nano_gpt2(true);
  deeper.layers = 3;
  expect_words(refusal(folder.path().string(), {}, json_of(2, kAccumulation), deeper),
               {"h.2.ln_1.weight", "not in the checkpoint"});
  ModelConfig flatter = nano_gpt2(true);
  flatter.layers = 1;
  expect_words(refusal(folder.path().string(), {}, json_of(2, kAccumulation), flatter),
               {"h.1.ln_1.weight", "lacks"});
}

TEST(CheckpointFiles, AnotherOptimizersStatesAreRefused) {
  const TemporaryFolder folder;
  make_checkpoint(folder);
  std::string lion = json_of(2, kAccumulation);
  lion.replace(lion.find("AdamW"), 5, "RMSprop");
  LoadCheckpointOptions load;
  expect_words(refusal(folder.path().string(), load, lion), {"square_avg", "AdamW"});
  load.load_optimizer_states = false;
  on_engine([&](Engine& engine, int) { engine.load_checkpoint(folder.path().string(), load); },
            lion);
}

TEST(CheckpointFiles, WithinAWindowTheyAreRefused) {
  const TemporaryFolder folder;
  on_engine([&](Engine& engine, int rank) {
    const TokenBatch batch = batch_at(rank, 0, 0);
    engine.forward(batch.view());
    engine.backward();
    engine.step();
    expect_error([&] { engine.save_checkpoint(folder.path().string()); }, "accumulation window");
    expect_error([&] { engine.load_checkpoint(folder.path().string()); }, "accumulation window");
    for (int micro = 1; micro < kAccumulation; ++micro) {
      engine.forward(batch.view());
      engine.backward();
      engine.step();
    }
  });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(CheckpointFiles, TheLastOnesAreKept) {
  const TemporaryFolder folder;
  on_engine([&](Engine& engine, int rank) {
    SaveCheckpointOptions save;
    save.tag = "best";
    engine.save_checkpoint(folder.path().string(), save);
    save.tag.clear();
    save.keep_last = 2;
    for (int step = 0; step < 4; ++step) {
      train_batches(engine, rank, 1);
      engine.save_checkpoint(folder.path().string(), save);
    }
  });
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"best", "global_step3", "global_step4", "latest"}));
}

TEST(CheckpointFiles, TheSameTagIsReplacedAndForeignFilesAreNot) {
  const TemporaryFolder folder;
  const std::string path = make_checkpoint(folder);
  fs::remove(path + "/zero3d.json");  // as a removal that was interrupted leaves it
  fs::create_directories(folder.file("global_step2"));
  write_text_file(folder.file("global_step2/notes.txt"), "mine");
  LogCapture log;
  on_engine([&](Engine& engine, int rank) {
    train_batches(engine, rank, 1);
    engine.save_checkpoint(folder.path().string());
    engine.save_checkpoint(folder.path().string());
    train_batches(engine, rank, 1);
    std::string message;
    try {
      engine.save_checkpoint(folder.path().string());
    } catch (const Error& error) {
      message = error.what();
    }
    expect_words(message, {"rank 0", "global_step2", "no checkpoint of zero3d"});
    train_batches(engine, rank, 1);  // a failed save does not end training
    engine.save_checkpoint(folder.path().string());
  });
  EXPECT_EQ(read_file(folder.file("latest")), "global_step3");
  read_saved(folder.file("global_step1"));
  read_saved(folder.file("global_step3"));
  EXPECT_EQ(read_file(folder.file("global_step2/notes.txt")), "mine");
}

/// A limit of the size of files stands for a full disk.
TEST(CheckpointFiles, AFullDiskLosesNeitherTheRunNorTheLastCheckpoint) {
  const TemporaryFolder folder;
  for (const bool asynchronous : {false, true}) {
    on_engine([&](Engine& engine, int rank) {
      train_batches(engine, rank, 1);
      SaveCheckpointOptions save;
      engine.save_checkpoint(folder.path().string(), save);
      train_batches(engine, rank, 1);
      static std::atomic<int> arrived{0};
      const auto meet = [&] {  // the limit is the process's
        engine.eval_batch(std::vector<MicroBatch>{batch_at(rank, 0, 0).view()});
      };
      rlimit old{};
      if (rank == 0) {
        getrlimit(RLIMIT_FSIZE, &old);
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit small{5000, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
      }
      meet();
      save.asynchronous = asynchronous;
      std::string message;
      try {
        engine.save_checkpoint(folder.path().string(), save);
        engine.finish_checkpoint();
      } catch (const Error& error) {
        message = error.what();
      }
      expect_words(message, {"rank-0000", "too large"});
      meet();
      if (rank == 0) setrlimit(RLIMIT_FSIZE, &old);
      meet();
      train_batches(engine, rank, 1);
      engine.save_checkpoint(folder.path().string());
    });
    EXPECT_EQ(read_file(folder.file("latest")), "global_step3");
    read_saved(folder.file("global_step1"));
    read_saved(folder.file("global_step3"));
    for (const auto& entry : fs::directory_iterator(folder.path()))
      EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos);
  }
}

TEST(CheckpointFiles, TagsThatDifferAreJudgedBySettings) {
  const TemporaryFolder folder;
  for (const char* validation : {"IGNORE", "WARN", "FAIL"}) {
    LogCapture log;
    on_engine(
        [&](Engine& engine, int rank) {
          SaveCheckpointOptions save;
          save.tag = concat("of-", rank);
          const auto call = [&] { engine.save_checkpoint(folder.path().string(), save); };
          if (validation == std::string("FAIL"))
            expect_error(call, "tag_validation");
          else
            call();
        },
        json_of(2, kAccumulation,
                concat(R"("checkpoint": {"tag_validation": ")", validation, R"("})")));
  }
  EXPECT_EQ(read_file(folder.file("latest")), "of-0");
}

TEST(CheckpointFiles, ChangedSettingsAreNamed) {
  const TrainSettings before = settings_of(json_of(2, 3), 2);
  TrainSettings now = before;
  EXPECT_EQ(changed_settings(describe(before), describe(now)), std::vector<std::string>());
  now.optimizer.params["lr"] = 0.5;
  now.gradients.max_norm = 2;
  now.accumulation = 1;
  now.sharding.gather_bucket = 1;
  now.precision.accumulation = DType::bf16;
  EXPECT_EQ(
      changed_settings(describe(before), describe(now)),
      (std::vector<std::string>{"accumulation is 1, and was 3", "gradient clipping is 2, and was 1",
                                "optimizer lr is 0.5, and was 0.01"}));
}

}  // namespace
}  // namespace zero3d::test
