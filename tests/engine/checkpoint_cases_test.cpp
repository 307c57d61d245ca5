// Small cases drawn from public reports of bugs in other engines, as far as they save and load; the
// kills among them are in tests/tools/kill_test.py.
#include <gtest/gtest.h>

#include <cmath>

#include "saved_tensors.h"
#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

constexpr const char* kNone = "";
constexpr const char* kHost =
    R"("offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}, )";
/// "@" is a folder.
constexpr const char* kDrives = R"("offload_optimizer": {"device": "nvme", "nvme_path": "@/nvme"},
    )";

struct Way {
  int stage = 0;
  int accumulation = 1;
  const char* place = kNone;
  const char* top = "";
  int tp = 1;
  int pp = 1;
};

std::string json_of(const Way& setup, const TemporaryFolder& folder) {
  std::string place = setup.place;
  if (setup.stage < 3) {  // parameters stay
    const std::size_t at = place.find(R"("offload_param")");
    if (at != std::string::npos) place.erase(at);
  }
  for (std::size_t at; (at = place.find('@')) != std::string::npos;)
    place.replace(at, 1, folder.path().string());
  return concat(R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, )", setup.top,
                R"("gradient_accumulation_steps": )", setup.accumulation,
                R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
                   "zero_optimization": {)",
                place, R"("stage3_param_persistence_threshold": 0, "stage": )", setup.stage, "}}");
}

RunResult run(const Way& setup, const TemporaryFolder& folder, const RunOptions& options) {
  TrainSettings settings =
      settings_of(json_of(setup, folder), options.ranks / (setup.tp * setup.pp));
  settings.tp = setup.tp;
  settings.pp = setup.pp;
  return run_engine(settings, options);
}

/// Steps [first, last) on data that the options make.
void train(Engine& engine, Module& module, const RunOptions& options, int rank, int first, int last,
           std::vector<StepResult>* steps = nullptr) {
  for (int step = first; step < last; ++step) {
    std::vector<TokenBatch> batches;
    std::vector<MicroBatch> views;
    for (int micro = 0; micro < engine.accumulation(); ++micro) {
      if (options.batch)
        batches.push_back(options.batch({rank, step, micro}));
      else
        batches.emplace_back(1, 1);
    }
    for (const TokenBatch& batch : batches) views.push_back(batch.view());
    if (auto* probe = dynamic_cast<ProbeModule*>(&module)) probe->clock = {step, 0};
    const StepResult result = engine.train_batch(views);
    if (rank == 0 && steps != nullptr) steps->push_back(result);
  }
}

/// `before` steps and a save, in one engine.
RunResult save_at(int before, const Way& setup, RunOptions options, const TemporaryFolder& folder) {
  options.body = [&, before](Engine& engine, Module& module, int rank) {
    train(engine, module, options, rank, 0, before);
    engine.save_checkpoint(folder.file("saved"));
  };
  return run(setup, folder, options);
}

/// Step `first` to `last` in an engine that begins elsewhere and loads that.
RunResult resume(int first, int last, const Way& setup, RunOptions options,
                 const TemporaryFolder& folder, std::vector<StepResult>* steps = nullptr) {
  options.engine.seed = 77;
  options.body = [&](Engine& engine, Module& module, int rank) {
    EXPECT_NE(engine.load_checkpoint(folder.file("saved")).path, "");
    train(engine, module, options, rank, first, last, steps);
  };
  return run(setup, folder, options);
}

RunResult straight(int last, const Way& setup, RunOptions options, const TemporaryFolder& folder,
                   std::vector<StepResult>* steps = nullptr) {
  options.body = [&](Engine& engine, Module& module, int rank) {
    train(engine, module, options, rank, 0, last, steps);
  };
  return run(setup, folder, options);
}

float gradient_of(int parameter, const Moment& at) {
  return 0.125f * static_cast<float>(1 + parameter + at.step);
}

TEST(CheckpointCases, ZERO_03_EmptyAndTinyParameters) {
  const auto one = [](const ProbeClock&) { return 1.0f; };
  const std::vector<std::pair<RunOptions, int>> models = {
      {probe_options({8, 0, 24}, gradient_of, 2), 2},
      {probe_options(
           [&](int) {
             return std::vector<ProbeBlockSpec>{{{probe_parameter("full", Shape{4, 4}, one)}},
                                                {{probe_parameter("empty", Shape{0, 4}, one)}}};
           },
           2),
       2},
      {probe_options({3}, gradient_of, 4), 4},
      {probe_options({1}, gradient_of, 2), 2}};
  for (const auto& [options, ranks] : models) {
    for (int stage = 0; stage <= 3; ++stage) {
      if (kSanitized && stage != 3) continue;
      for (const char* place : {kNone, kHost, kDrives}) {
        if ((place == kHost && stage == 0) || (place == kDrives && stage < 3)) continue;
        const TemporaryFolder folder;
        const Way setup{stage, 1, place};
        const RunResult whole = straight(4, setup, options, folder);
        save_at(2, setup, options, folder);
        EXPECT_TRUE(same_state(whole.state, resume(2, 4, setup, options, folder).state))
            << stage << place;
        const CheckpointReader saved(folder.file("saved/global_step2"));
        if (const SavedParameter* empty = saved.find("empty")) {
          EXPECT_EQ(empty->shape, (Shape{0, 4}));
        }
      }
    }
  }
}

/// Weight decay moves what has no gradient, as DeepSpeed's AdamW does, at every stage alike.
TEST(CheckpointCases, ZERO_07_FrozenAndUnusedParameters) {
  const auto one = [](const ProbeClock& at) { return 0.5f + static_cast<float>(at.step); };
  const auto zero = [](const ProbeClock&) { return 0.0f; };
  const auto blocks = [&](float embedding) {
    return [=](int) {
      ProbeParameter frozen = probe_parameter("embedding", Shape{61, 16}, {});
      frozen.spec.initial = constant_values(embedding);
      frozen.spec.frozen = true;
      return std::vector<ProbeBlockSpec>{{{frozen}},
                                         {{probe_parameter("used", Shape{40, 33}, one)}},
                                         {{probe_parameter("unused", Shape{700}, zero)}}};
    };
  };
  const RunOptions options = probe_options(blocks(0.3f), 2);
  const RunOptions fresh = probe_options(blocks(-1.0f), 2);
  const TemporaryFolder none;
  const RunResult expected = straight(4, {0}, options, none);
  const std::vector<float> frozen = ParameterState::floats(expected.state.at("embedding").value);
  EXPECT_EQ(frozen, std::vector<float>(61 * 16, 0.3f));
  EXPECT_LT(ParameterState::floats(expected.state.at("unused").value)[0], 1.0f) << "it decays";
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* place : {kNone, kHost, kDrives}) {
      if (stage == 0 && place != kNone) continue;
      const TemporaryFolder folder;
      const Way setup{stage, 1, place};
      save_at(2, setup, options, folder);
      const CheckpointReader saved(folder.file("saved/global_step2"));
      EXPECT_EQ(saved.find("embedding")->tensors.size(), 1u) << "no state of an optimizer";
      const RunResult rest = resume(2, 4, setup, fresh, folder);
      for (const char* name : {"embedding", "used", "unused"})
        EXPECT_EQ(expected.state.at(name).value, rest.state.at(name).value)
            << name << stage << place;
    }
  }
}

void expect_close(const std::vector<StepResult>& expected, const std::vector<StepResult>& actual,
                  double relative, const std::string& what) {
  ASSERT_LE(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const StepResult& want = expected[expected.size() - actual.size() + i];
    EXPECT_NEAR(actual[i].loss, want.loss, relative * want.loss) << what << " step " << want.step;
    EXPECT_EQ(actual[i].step, want.step);
  }
}

TEST(CheckpointCases, NVME_05_StateOnDrives) {
  const TemporaryFolder folder;
  const Way drives{3, 2, kDrives};
  const RunOptions two = nano_options(nano_gpt2(true), 2, 2, 1);
  std::vector<StepResult> steps;
  const RunResult whole = straight(6, drives, two, folder, &steps);
  save_at(3, drives, two, folder);
  for (const char* place : {kDrives, kHost, kNone})
    EXPECT_TRUE(same_state(whole.state, resume(3, 6, {3, 2, place}, two, folder).state)) << place;
  std::vector<StepResult> alone;
  resume(3, 6, {3, 4, kDrives}, nano_options(nano_gpt2(true), 1, 4, 1), folder, &alone);
  expect_close(steps, alone, 1e-6, "one rank");
  RunOptions options = two;
  options.body = [&](Engine& engine, Module& module, int rank) {
    train(engine, module, options, rank, 0, 1);
    for (int i = 0; i < 20; ++i) {
      SaveCheckpointOptions save;
      save.tag = concat("number", i % 3);
      save.asynchronous = i % 2 == 1;
      engine.save_checkpoint(folder.file("often"), save);
    }
    engine.finish_checkpoint();
  };
  run(drives, folder, options);
  EXPECT_TRUE(same_saved(read_saved(folder.file("often/number0")),
                         read_saved(folder.file("often/number1"))));
}

TEST(CheckpointCases, CKPT_01_OnAnotherNumberOfRanks) {
  const auto probe = [](int ranks) { return probe_options({13, 7, 36, 1}, gradient_of, ranks); };
  const TemporaryFolder none;
  const RunResult whole = straight(8, {2}, probe(2), none);
  for (const auto& [from, to] : {std::pair{1, 1}, {2, 2}, {3, 3}, {2, 3}, {3, 1}, {0, 3}}) {
    const TemporaryFolder folder;
    save_at(4, {from}, probe(2), folder);
    for (const int ranks : {1, 3, 4})
      EXPECT_TRUE(same_state(whole.state, resume(4, 8, {to}, probe(ranks), folder).state))
          << "stage " << from << " to " << to << " on " << ranks;
  }
  std::vector<StepResult> steps;
  const RunOptions two = nano_options(nano_gpt2(false), 2, 6, 1);
  straight(8, {2, 6}, two, none, &steps);
  const TemporaryFolder folder;
  save_at(4, {2, 6}, two, folder);
  for (const int ranks : {1, 3, 4}) {
    std::vector<StepResult> rest;
    resume(4, 8, {3, 12 / ranks}, nano_options(nano_gpt2(false), ranks, 12 / ranks, 1), folder,
           &rest);
    expect_close(steps, rest, 1e-6, concat(ranks, " ranks"));
  }
}

TEST(CheckpointCases, CKPT_01_FromTensorParallelAndPipelineToOneRank) {
  const TemporaryFolder none;
  const RunOptions one = nano_options(nano_gpt2(false), 1, 4, 1);
  std::vector<StepResult> steps;
  straight(8, {2, 4}, one, none, &steps);
  for (const auto& [tp, pp] : {std::pair{2, 1}, {1, 2}}) {
    const TemporaryFolder folder;
    RunOptions cut = one;
    cut.ranks = 2;
    cut.batch = [batch = one.batch](const Moment& at) {  // every rank of a replica has its batches
      return batch({0, at.step, at.micro_batch});
    };
    save_at(4, {1, 4, kNone, "", tp, pp}, cut, folder);
    std::vector<StepResult> rest;
    resume(4, 8, {1, 4}, one, folder, &rest);
    expect_close(steps, rest, 1e-6, concat("tp ", tp, " pp ", pp));
  }
}

/// After two good steps the loss scale grows to where the third overflows.
TEST(CheckpointCases, CKPT_04_StraightIsResumed) {
  const TemporaryFolder folder;
  constexpr const char* kTop = R"("fp16": {"enabled": true, "initial_scale_power": 17,
      "loss_scale_window": 1, "hysteresis": 1}, "scheduler": {"type": "WarmupDecayLR", "params":
      {"warmup_max_lr": 0.01, "warmup_num_steps": 4, "total_num_steps": 12}}, )";
  const Way setup{2, 2, kNone, kTop};
  ModelConfig model = nano_gpt2(true);
  model.embedding_dropout = model.residual_dropout = model.attention_dropout = 0.1;
  const RunOptions options = nano_options(model, 2, 2, 1);
  std::vector<StepResult> steps, rest;
  const RunResult whole = straight(10, setup, options, folder, &steps);
  ASSERT_EQ(steps.size(), 10u);
  EXPECT_FALSE(steps[0].skipped || steps[1].skipped);
  EXPECT_TRUE(steps[2].skipped) << "the case wants an overflow before the save";
  save_at(4, setup, options, folder);
  const RunResult resumed = resume(4, 10, setup, options, folder, &rest);
  EXPECT_TRUE(same_state(whole.state, resumed.state));
  ASSERT_EQ(rest.size(), 6u);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const StepResult& want = steps[4 + i];
    EXPECT_EQ(rest[i].step, want.step);
    EXPECT_EQ(rest[i].loss, want.loss) << want.step;
    EXPECT_EQ(rest[i].lr, want.lr) << want.step;
    EXPECT_EQ(rest[i].loss_scale, want.loss_scale) << want.step;
    EXPECT_EQ(rest[i].skipped, want.skipped) << want.step;
  }
}

}  // namespace
}  // namespace zero3d::test
