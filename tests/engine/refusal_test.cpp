// What the engine refuses of its callers: before any work begins, so
// that no rank has failed and the run goes on.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

std::string json_of(int stage, int accumulation = 1) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
          "gradient_accumulation_steps": )",
      accumulation, R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
      stage, "}}");
}

template <typename Call>
void expect_refused(Call&& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << part;
  } catch (const CommError& error) {
    ADD_FAILURE() << "not refused but failed: " << error.what();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Refusal, OfArgumentsLeavesTheRunAsItWas) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const RunResult expected = run_engine(json_of(stage, 2), nano_options(nano_gpt2(true), 2, 2));
    RunOptions options = nano_options(nano_gpt2(true), 2, 2);
    options.body = [](Engine& engine, Module&, int rank) {
      for (int step = 0; step < 3; ++step) {
        const TokenBatch batches[] = {nano_batch({rank, step, 0}, 2, 2, 2),
                                      nano_batch({rank, step, 1}, 2, 2, 2)};
        const TokenBatch too_long(2, 17);
        std::vector<std::int32_t> ids(17);
        expect_refused([&] { engine.next_logits(ids); }, "17");
        const MicroBatch spoilt[] = {batches[0].view(), too_long.view()};
        expect_refused([&] { engine.train_batch(spoilt); }, "17");
        expect_refused([&] { engine.eval_batch(spoilt); }, "17");
        const MicroBatch without[] = {batches[0].view(), {batches[1].view().tokens, ConstView()}};
        expect_refused([&] { engine.train_batch(without); }, "a batch needs targets");
        expect_refused([&] { engine.eval_batch(without); }, "a batch needs targets");
        const MicroBatch good[] = {batches[0].view(), batches[1].view()};
        engine.train_batch(good);
      }
    };
    const RunResult found = run_engine(json_of(stage, 2), options);
    EXPECT_TRUE(same_state(expected.state, found.state));
  }
}

TEST(Refusal, OfABatchThatDoesNotFitBesideTheGathersIsNoFailure) {
  RunOptions options = nano_options(nano_gpt2(true), 2, 1);
  const RunResult free = run_engine(json_of(3), options);
  options.budget_bytes = free.estimates[0].total();
  options.body = [](Engine& engine, Module&, int rank) {
    const TokenBatch usual = nano_batch({rank, 0, 0}, 2, 1, 2);
    const MicroBatch view = usual.view();
    engine.train_batch({&view, 1});
    if (rank == 1) {  // the other one has nothing larger, and does not hear of it
      const TokenBatch larger = nano_batch({rank, 0, 0}, 2, 1, 12);
      const MicroBatch larger_view = larger.view();
      expect_refused(
          [&] {
            engine.train_batch({&larger_view, 1});
          },
          "state the longest sequence when the engine is made");
    }
    engine.train_batch({&view, 1});
    EXPECT_EQ(engine.global_steps(), 2);
  };
  run_engine(json_of(3), options);
}

}  // namespace
}  // namespace zero3d::test
