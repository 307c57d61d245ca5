// Where the whole model meets a rank that must not hold it: loading under stage 3, and saving
// 16-bit or fp32 parameters to one file.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include "zero3d/core/text.h"
#include "zero3d/formats/safetensors.h"
#include "zero3d/models/hf_folder.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

constexpr std::int64_t kRows = 3000;  // of the wide probe: shards cut its parameters

std::string json_of(int stage, const std::string& zero = "", const std::string& top = "") {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}})",
      top, R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )", stage,
      zero, "}}");
}

/// Gives ones and remembers which elements were asked for.
class CountingSource final : public ParameterSource {
 public:
  void read(const ParameterSpec& parameter, std::span<const GlobalRun> runs,
            const View& dst) const override {
    const std::lock_guard lock(mutex_);
    std::vector<int>& counts = reads_[parameter.name];
    counts.resize(static_cast<std::size_t>(parameter.shape.numel()));
    for (const GlobalRun& run : runs) {
      std::fill_n(dst.flat(run.offset, run.count).as<float>(), run.count, 1.0f);
      for (std::int64_t i = 0; i < run.count; ++i)
        ++counts[static_cast<std::size_t>(run.global_first + i)];
    }
  }
  const std::map<std::string, std::vector<int>>& reads() const { return reads_; }

 private:
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<int>> reads_;
};

TEST(Loading, UnderStage3EachElementIsReadByItsOwnerAloneAndNoRankHoldsMoreThanItsShard) {
  for (const int ranks : {2, 3}) {
    CountingSource source;
    RunOptions options = probe_options(
        {kRows, 7, 2 * kRows}, [](int, const Moment&) { return 1.0f; }, ranks);
    options.engine.source = &source;
    options.steps = 1;
    std::int64_t shards = 0;
    options.after = [&](Engine& engine, int rank) {
      if (rank != 0) return;
      for (const Unit& unit : engine.model().plan().layout.units()) shards += unit.shard;
    };
    const RunResult result = run_engine(json_of(3), options);
    ASSERT_EQ(source.reads().size(), 3u);
    for (const auto& [name, counts] : source.reads()) {
      for (const int count : counts) ASSERT_EQ(count, 1) << name;
    }
    for (const MemoryUse& use : result.memory) {
      EXPECT_EQ(use.categories[Category::parameters].peak, shards * 4) << "while loading too";
    }
  }
}

TEST(Save16BitModel, WritesEveryParameterWholeInTheTrainingDtype) {
  for (const int stage : {0, 2, 3}) {
    const TemporaryFolder folder;
    RunOptions options = nano_options(nano_gpt2(true), 2, 1);
    options.after = [&](Engine& engine, int) {
      EXPECT_TRUE(engine.save_16bit_model(folder.file("out")));
    };
    const RunResult result =
        run_engine(json_of(stage, R"(, "stage3_gather_16bit_weights_on_model_save": true)",
                           R"(, "bf16": {"enabled": true})"),
                   options);
    const SafetensorsFile file((folder.path() / "out" / "model.safetensors").string());
    EXPECT_EQ(file.tensors().size(), result.state.size());
    for (const SafetensorsEntry& entry : file.tensors()) {
      EXPECT_EQ(entry.dtype, DType::bf16) << entry.name;
      std::vector<std::byte> bytes(static_cast<std::size_t>(entry.end - entry.begin));
      file.read(entry, 0, View(bytes.data(), DType::bf16, Shape{entry.numel()}));
      EXPECT_EQ(bytes, result.state.at(entry.name).value) << entry.name << ", stage " << stage;
    }
  }
}

TEST(Save16BitModel, MakesAFolderThatLoadsElsewhere) {
  const TemporaryFolder folder;
  ModelConfig config = nano_gpt2(true);
  std::filesystem::create_directory(folder.path() / "model");
  folder.write("model/tokenizer.json", "{}");
  folder.write("model/generation_config.json", "{\"temperature\": 0.5}");
  folder.write("model/notes.txt", "mine");
  config.folder = folder.file("model");
  config.source = R"({"model_type": "gpt2", "pad_token_id": 3})";
  RunOptions options = nano_options(config, 2, 1);
  const LogCapture log;
  options.after = [&](Engine& engine, int) { engine.save_16bit_model(folder.file("out")); };
  run_engine(json_of(2, "", ""), options);
  ModelConfig read = read_model_config(folder.file("out"));
  EXPECT_EQ(read.hidden_size, config.hidden_size);
  EXPECT_NE(read.source.find("pad_token_id"), std::string::npos);
  EXPECT_NE(open_model_folder(folder.file("out"), read), nullptr);
  EXPECT_EQ(read_file(folder.file("out/generation_config.json")), "{\"temperature\": 0.5}");
  EXPECT_EQ(read_file(folder.file("out/tokenizer.json")), "{}");
  EXPECT_EQ(log.with("notes.txt").size(), 1u);
}

TEST(Save16BitModel, Stage3WithoutTheKeySaysSoAndSavesNothing) {
  const TemporaryFolder folder;
  const LogCapture log;
  RunOptions options = nano_options(nano_gpt2(true), 2, 1);
  options.after = [&](Engine& engine, int) {
    EXPECT_FALSE(engine.save_16bit_model(folder.file("out")));
  };
  run_engine(json_of(3), options);
  EXPECT_FALSE(std::filesystem::exists(folder.file("out")));
  EXPECT_FALSE(log.with("gathering 16-bit weights on model save is off").empty());
}

}  // namespace
}  // namespace zero3d::test
