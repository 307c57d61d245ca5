// Lists of operations: the plain order, what is refused, repetitions left out; and hand-written
// orders (1F1B, backward in two halves) that give the bits of the plain one.
#include "zero3d/engine/schedule.h"

#include <gtest/gtest.h>

#include "schedules.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

TEST(Schedule, ThePlainOrderIsAStep) {
  for (const int down_to : {0, 2}) {
    for (const int m : {1, 3}) require_step(plan_step({4, down_to}, m), {4, down_to}, m);
  }
  const std::vector<Op> expected{
      op_of(OpKind::load_batch, 0, 0),    forward_of(0),  forward_of(1),
      op_of(OpKind::loss_gradient, 1, 0), backward_of(1), backward_of(0)};
  EXPECT_EQ(plan_step({2, 0}, 1), expected);
}

TEST(Schedule, RefusesWhatIsNoStep) {
  const StageBlocks stage{3, 1};
  const std::vector<Op> good = interleaved(stage, 3);
  require_step(good, stage, 3);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<Op> missing = good;
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THROW(require_step(missing, stage, 3), Error) << "without operation " << i;
    std::vector<Op> twice = good;
    twice.insert(twice.begin() + static_cast<std::ptrdiff_t>(i), good[i]);
    EXPECT_THROW(require_step(twice, stage, 3), Error) << "operation " << i << " twice";
  }
  std::vector<Op> late = split_backward(stage, 2, 1);
  const auto first = std::find(late.begin(), late.end(), op_of(OpKind::backward_weights, 2, 0));
  const auto second = std::find(late.begin(), late.end(), op_of(OpKind::backward_weights, 2, 1));
  std::swap(*first, *second);
  EXPECT_THROW(require_step(late, stage, 2), Error) << "micro-batches out of order at a block";
  try {
    require_step({{forward_of(0, 1)}}, stage, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("forward of block 0, micro-batch 1"),
              std::string::npos)
        << error.what();
  }
}

TEST(Schedule, LeavesOutTheRepetitionsOfASteadyPhase) {
  const StageBlocks stage{4, 1};
  const auto check = [&](const std::vector<Op>& many, const std::vector<Op>& few) {
    EXPECT_EQ(without_repetitions(many), few);
    EXPECT_EQ(without_repetitions(few), few) << "nothing more to leave out";
  };
  check(plan_step(stage, 100), plan_step(stage, 2));
  EXPECT_EQ(without_repetitions(plan_step(stage, 1)), plan_step(stage, 1));
  for (const int ahead : {1, 3}) {
    const std::vector<Op> shorter = without_repetitions(one_forward_one_backward(stage, 64, ahead));
    EXPECT_LE(shorter.size(), one_forward_one_backward(stage, ahead + 3, ahead).size());
    const int left = static_cast<int>(shorter.size() / plan_step(stage, 1).size());
    EXPECT_EQ(shorter, one_forward_one_backward(stage, left, ahead));
  }
  const std::vector<Op> uneven = one_forward_one_backward(stage, 3, 2);
  EXPECT_EQ(without_repetitions(uneven), uneven) << "no steady phase";
}

/// Every order gives the plain one's bits, at every stage, tied or not, with parameters frozen.
TEST(Schedule, HandWrittenOrdersGiveTheBitsOfThePlainOne) {
  const int accumulation = 4;
  for (const char* precision : {"", R"("bf16": {"enabled": true}, )"}) {
    for (const bool tied : {true, false}) {
      for (int stage = 0; stage <= 3; ++stage) {
        if (kSanitized && (stage != (tied ? 3 : 1) || *precision == '\0')) continue;
        const std::string json = concat(
            R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
            accumulation, ", ", precision,
            R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": )",
            stage, R"(, "stage3_param_persistence_threshold": 100, "reduce_bucket_size": 2000,
                       "stage3_max_reuse_distance": 20000, "stage3_prefetch_bucket_size": 3000}})");
        ModelConfig model = nano_gpt2(tied);
        model.residual_dropout = model.attention_dropout = model.embedding_dropout = 0.1;
        RunOptions options = nano_options(model, 2, accumulation);
        options.engine.adjust = [&](ParameterSpec& spec) {
          spec.frozen = !tied && (spec.name.find("wpe") != std::string::npos ||
                                  spec.name.find("wte") != std::string::npos ||
                                  spec.name.find("h.1.mlp") != std::string::npos);
        };
        options.jitter_seed = stage == 3 ? 3 : 0;
        options.body = [accumulation](Engine& engine, Module&, int rank) {
          for (int step = 0; step < 2; ++step) {
            std::vector<TokenBatch> batches;
            std::vector<MicroBatch> views;
            for (int m = 0; m < accumulation; ++m)
              batches.push_back(nano_batch({rank, step, m}, 2, accumulation, 2));
            for (const TokenBatch& batch : batches) views.push_back(batch.view());
            engine.train_batch(views);
          }
        };
        const RunResult plain = run_engine(json, options);
        for (const NamedSchedule& c : hand_written_schedules()) {
          SCOPED_TRACE(testing::Message()
                       << c.name << ", stage " << stage << (tied ? ", tied" : "") << precision);
          options.engine.schedule = c.schedule;
          const RunResult result = run_engine(json, options);
          EXPECT_TRUE(same_bits(plain, result));
          for (std::size_t rank = 0; rank < result.memory.size(); ++rank)
            EXPECT_EQ(result.memory[rank].peak, result.estimates[rank].total());
        }
      }
    }
  }
}

}  // namespace
}  // namespace zero3d::test
