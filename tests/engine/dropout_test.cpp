// Which random numbers dropout draws: those of the sample, in every step others.
#include <gtest/gtest.h>

#include <algorithm>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

std::string json_of(int stage, int accumulation) {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                accumulation, R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
                "zero_optimization": {"stage": )",
                stage, "}}");
}

/// Ranks that take each other's samples draw the same dropout for them when they say which they
/// are.
TEST(Dropout, DrawsForTheSampleThatIsNamed) {
  ModelConfig model = nano_gpt2(true);
  model.embedding_dropout = model.residual_dropout = 0.3;
  const auto loss_of = [&](bool swapped, bool named) {
    double loss = 0;
    RunOptions options = nano_options(model, 2, 1);
    options.body = [&](Engine& engine, Module&, int rank) {
      const int samples_of = swapped ? 1 - rank : rank;
      const TokenBatch batch = nano_batch({samples_of, 0, 0}, 2, 1, 2);
      MicroBatch view = batch.view();
      if (named) view.first_sample = samples_of * view.tokens.shape()[0];
      const double result = engine.train_batch({&view, 1}).loss;
      if (rank == 0) loss = result;
    };
    run_engine(json_of(2, 1), options);
    return loss;
  };
  const double expected = loss_of(false, false);
  EXPECT_EQ(loss_of(false, true), expected) << "what the engine counts when nothing is said";
  EXPECT_EQ(loss_of(true, true), expected);
  EXPECT_NE(loss_of(true, false), expected);
}

TEST(Dropout, DrawsAnewInEveryStepAndMicroBatch) {
  ModelConfig model = nano_gpt2(true);
  model.residual_dropout = 0.3;
  RunOptions options = nano_options(model, 1, 2);
  options.body = [](Engine& engine, Module&, int) {
    const TokenBatch batch = nano_batch({0, 0, 0}, 1, 1, 2);
    std::vector<double> losses;
    for (int micro = 0; micro < 4; ++micro) {
      engine.forward(batch.view());
      losses.push_back(engine.loss());
      engine.backward();
      engine.step();
    }
    std::sort(losses.begin(), losses.end());
    EXPECT_EQ(std::adjacent_find(losses.begin(), losses.end()), losses.end());
  };
  TrainSettings settings = settings_of(json_of(0, 2), 1);
  settings.optimizer.params["lr"] = 0.0;
  run_engine(settings, options);
}

}  // namespace
}  // namespace zero3d::test
