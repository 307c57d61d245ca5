// Straight = resumed, bit for bit: steps, a save, a load in a new engine, more steps, against all
// of them in a row; in every precision, with every optimizer, at every stage and on every tier.
#include <gtest/gtest.h>

#include <cstring>

#include "saved_tensors.h"
#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

struct Trial {
  const char* name = "";
  const char* optimizer = "AdamW";
  int stage = 2;
  int ranks = 2;
  int accumulation = 1;
  const char* top = "";   ///< More keys, each with a comma behind it.
  const char* zero = "";  ///< The same of zero_optimization; "@" is a folder.
  bool llama = false;
  double dropout = 0;
  bool asynchronous = false;
};

std::string json_of(const Trial& run, const std::string& folder) {
  std::string zero = run.zero;
  for (std::size_t at; (at = zero.find('@')) != std::string::npos;) zero.replace(at, 1, folder);
  return concat(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, "gradient_accumulation_steps": )",
      run.accumulation, ", ", run.top,
      R"("zero_allow_untested_optimizer": true, "optimizer": {"type": ")", run.optimizer,
      R"(", "params": {"lr": 0.01}}, "scheduler": {"type": "WarmupLR", "params":
         {"warmup_max_lr": 0.01, "warmup_num_steps": 10}}, "zero_optimization": {)",
      zero, R"("sub_group_size": 3000, "stage3_param_persistence_threshold": 20, "stage": )",
      run.stage, "}}");
}

ModelConfig model_of(const Trial& run) {
  ModelConfig model = run.llama ? nano_llama(true) : nano_gpt2(true);
  if (run.optimizer == std::string("Muon")) {
    model.hidden_size = 32;
    model.head_dim = 8;
  }
  model.embedding_dropout = model.residual_dropout = run.dropout;
  return model;
}

using Losses = std::vector<StepResult>;

/// Steps [first, last) on one rank.
void train(Engine& engine, const Trial& run, int rank, int first, int last, Losses& losses) {
  for (int step = first; step < last; ++step) {
    std::vector<TokenBatch> batches;
    std::vector<MicroBatch> views;
    for (int micro = 0; micro < run.accumulation; ++micro)
      batches.push_back(nano_batch({rank, step, micro}, run.ranks, run.accumulation, 2));
    for (const TokenBatch& batch : batches) views.push_back(batch.view());
    const StepResult result = engine.train_batch(views);
    if (rank == 0) losses.push_back(result);
  }
}

void expect_same(const Losses& straight, const Losses& resumed) {
  ASSERT_LE(resumed.size(), straight.size());
  for (std::size_t i = 0; i < resumed.size(); ++i) {
    const StepResult& a = straight[straight.size() - resumed.size() + i];
    const StepResult& b = resumed[i];
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(std::memcmp(&a.loss, &b.loss, sizeof a.loss), 0) << a.loss << " " << b.loss;
    EXPECT_EQ(std::memcmp(&a.grad_norm, &b.grad_norm, sizeof a.loss), 0) << a.step;
    EXPECT_EQ(a.lr, b.lr);
    EXPECT_EQ(a.loss_scale, b.loss_scale);
    EXPECT_EQ(a.skipped, b.skipped);
  }
}

constexpr int kSteps = 5;

class Resume : public ::testing::TestWithParam<Trial> {};

TEST_P(Resume, StraightIsResumed) {
  const Trial& run = GetParam();
  const TemporaryFolder folder;
  const std::string json = json_of(run, folder.path().string());
  RunOptions options = nano_options(model_of(run), run.ranks, run.accumulation);
  SaveCheckpointOptions save;
  save.asynchronous = run.asynchronous;
  const std::string saved = folder.file("saved");
  Losses straight, resumed;
  options.body = [&](Engine& engine, Module&, int rank) {
    train(engine, run, rank, 0, 2, straight);
    EXPECT_EQ(engine.save_checkpoint(saved, save), saved + "/global_step2");
    train(engine, run, rank, 2, kSteps, straight);
    engine.finish_checkpoint();
  };
  const RunResult whole = run_engine(json, options);
  options.engine.seed = 99;  // it comes from the checkpoint
  options.body = [&](Engine& engine, Module&, int rank) {
    const LoadedCheckpoint loaded = engine.load_checkpoint(saved);
    EXPECT_EQ(loaded.path, saved + "/global_step2");
    EXPECT_EQ(loaded.changes, std::vector<std::string>());
    EXPECT_EQ(engine.state().seed, 1234u);
    train(engine, run, rank, 2, kSteps, resumed);
  };
  const RunResult rest = run_engine(json, options);
  EXPECT_EQ(straight.size(), static_cast<std::size_t>(kSteps));
  EXPECT_EQ(resumed.size(), static_cast<std::size_t>(kSteps - 2));
  expect_same(straight, resumed);
  EXPECT_TRUE(same_state(whole.state, rest.state));
}

constexpr const char* kBf16 = R"("bf16": {"enabled": true}, )";
/// Its first scale overflows, so that the save follows a skipped step.
constexpr const char* kFp16 =
    R"("fp16": {"enabled": true, "initial_scale_power": 22, "hysteresis": 1}, )";
constexpr const char* kCpu =
    R"("offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}, )";
constexpr const char* kHalf = R"("offload_optimizer": {"device": "cpu", "ratio": 0.5}, )";
constexpr const char* kNvme =
    R"("offload_optimizer": {"device": "nvme", "nvme_path": "@/nvme", "buffer_count": 3},
       "offload_param": {"device": "nvme", "nvme_path": "@/nvme", "max_in_cpu": 1000}, )";

std::vector<Trial> trials() {
  std::vector<Trial> all = {
      {"bf16_offload_nvme", "AdamW", 3, 2, 2, kBf16, kNvme},
      {"fp16_after_overflow", "AdamW", 2, 2, 1, kFp16},
      {"async_bf16", "AdamW", 1, 3, 1, kBf16, "", false, 0.2, true},
  };
  if (kSanitized) return all;
  for (const char* optimizer : {"Adam", "Adagrad", "Lamb", "Lion", "Muon", "RMSprop", "SGD"})
    all.push_back({optimizer, optimizer, 2, 2, 1, kBf16});
  const Trial more[] = {
      {"fp32_stage0", "AdamW", 0, 2},
      {"fp32_stage3", "AdamW", 3, 3, 2, "", "", true},
      {"bf16_states", "AdamW", 2, 2, 1,
       R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                    "bf16_optimizer_states": true}, )"},
      {"fp16_stage3", "AdamW", 3, 2, 1, kFp16, "", true},
      {"dropout_accumulated", "AdamW", 1, 2, 3, "", "", false, 0.3},
      {"cpu", "AdamW", 3, 2, 1, "", kCpu},
      {"half_cpu", "AdamW", 3, 2, 1, kBf16, kHalf},
      {"nvme_fp32", "AdamW", 3, 1, 1, "", kNvme},
      {"nvme_lamb", "Lamb", 3, 2, 1, kBf16, kNvme},
      {"mics", "AdamW", 3, 4, 1, "", R"("mics_shard_size": 2, )"},
      {"hpz", "AdamW", 3, 4, 1, "", R"("zero_hpz_partition_size": 2, )"},
      {"async_cpu", "AdamW", 3, 2, 1, "", kCpu, false, 0, true},
      {"async_nvme", "AdamW", 3, 2, 1, kBf16, kNvme, true, 0, true},
  };
  all.insert(all.end(), std::begin(more), std::end(more));
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Resume, ::testing::ValuesIn(trials()),
                         [](const auto& entry) { return std::string(entry.param.name); });

/// Saved by one run and loaded by another, which saves it again.
SavedTensors after(const Trial& from, const Trial& to) {
  const TemporaryFolder folder;
  const std::string saved = folder.file("saved");
  const std::string again = folder.file("again");
  RunOptions options = nano_options(model_of(from), from.ranks, from.accumulation);
  Losses losses;
  options.body = [&](Engine& engine, Module&, int rank) {
    train(engine, from, rank, 0, 2, losses);
    engine.save_checkpoint(saved);
  };
  run_engine(json_of(from, folder.path().string()), options);
  options = nano_options(model_of(to), to.ranks, to.accumulation);
  options.body = [&](Engine& engine, Module&, int rank) {
    engine.load_checkpoint(saved);
    engine.save_checkpoint(again);
    train(engine, to, rank, 2, 3, losses);
  };
  run_engine(json_of(to, folder.path().string()), options);
  const SavedTensors before = read_saved(saved + "/global_step2");
  const SavedTensors result = read_saved(again + "/global_step2");
  EXPECT_TRUE(same_saved(before, result)) << from.name << " to " << to.name;
  return result;
}

TEST(Reshape, StagesRanksAndTiersKeepEveryBit) {
  const Trial runs[] = {{"stage 0", "AdamW", 0, 1, 1, kBf16},
                        {"stage 1 of 3", "AdamW", 1, 3, 1, kBf16},
                        {"stage 3 of 4", "AdamW", 3, 4, 1, kBf16},
                        {"drives", "AdamW", 3, 2, 1, kBf16, kNvme},
                        {"host", "AdamW", 2, 2, 1, kBf16, kCpu}};
  for (std::size_t i = 0; i + 1 < std::size(runs); ++i) {
    after(runs[i], runs[i + 1]);
    if (kSanitized) break;
    after(runs[i + 1], runs[i]);
  }
}

}  // namespace
}  // namespace zero3d::test
