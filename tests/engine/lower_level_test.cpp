// The lower level of the engine, driven by hand as a trainer with its own forward and backward
// does: in order, out of order, and with passes given up half way.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

constexpr int kRanks = 2;

/// Four parameters of 1 whose gradient is (rank + 1) * (block + 1), driven by hand in `order` of
/// blocks.
std::vector<float> train_by_hand(int stage, const std::vector<int>& order, const std::string& zero,
                                 const std::vector<std::int64_t>& sizes = {5, 2000, 3, 1100}) {
  RunOptions options = probe_options(
      sizes, [](int, const Moment&) { return 0.0f; }, 2);
  options.body = [&](Engine& engine, Module&, int rank) {
    ShardedModel& model = engine.model();
    for (int step = 0; step < 3; ++step) {
      model.begin_training(0);
      for (const bool forward : {true, false}) {
        if (!forward) model.begin_backward(0, true);
        const std::vector<int> blocks =
            forward ? order : std::vector<int>(order.rbegin(), order.rend());
        for (const int block : blocks) {
          const Op op = forward ? forward_of(block) : backward_of(block);
          const std::vector<ConstView> views = model.acquire(op);
          EXPECT_EQ(views.size(), 1u);
          if (forward) {
            const ConstView view = views[0];
            model.compute().launch("use", {reads(view)}, [view] {
              for (std::int64_t i = 1; i < view.numel(); ++i)
                ZERO3D_CHECK(view.as<float>()[i] == view.as<float>()[0], "equal elements");
            });
          } else {
            const View target = model.gradients(op)[0].view;
            model.compute().launch("gradient", {writes(target)}, [target, rank, block] {
              for (std::int64_t i = 0; i < target.numel(); ++i)
                target.as<float>()[i] = static_cast<float>((rank + 1) * (block + 1));
            });
          }
          model.release(op);
        }
      }
      EXPECT_TRUE(model.step().applied);
    }
  };
  const RunResult result = run_engine(
      concat(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params":
                 {"lr": 0.125}}, "gradient_clipping": 0, "zero_allow_untested_optimizer": true,
                 "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
             stage, zero, "}}"),
      options);
  std::vector<float> values;
  for (int block = 0; block < 4; ++block) {
    const std::vector<float> all =
        ParameterState::floats(result.state.at(concat("p", block)).value);
    for (const float value : all) EXPECT_EQ(value, all[0]);
    values.push_back(all[0]);
  }
  return values;
}

TEST(LowerLevel, OutOfOrderAcquiresWarnOnceAndAreRight) {
  const std::vector<float> expected = {1 - 0.5625f, 1 - 1.125f, 1 - 1.6875f, 1 - 2.25f};
  for (int stage = 0; stage <= 3; ++stage) {
    {
      const LogCapture log;
      EXPECT_EQ(train_by_hand(stage, {0, 1, 2, 3}, ""), expected) << stage;
      EXPECT_TRUE(log.with("out of the planned order").empty());
    }
    const LogCapture log;
    EXPECT_EQ(train_by_hand(stage, {2, 0, 3, 1}, ""), expected) << stage;
    const std::vector<std::string> warnings = log.with("out of the planned order");
    EXPECT_EQ(warnings.size(), stage == 3 ? static_cast<std::size_t>(kRanks) : 0u)
        << "once for each rank's store";
  }
  EXPECT_EQ(train_by_hand(3, {3, 2, 1, 0}, R"(, "zero_hpz_partition_size": 2)"), expected);
}

/// Blocks 3 and 2 share a bucket, and that has the buffer of block 0's.
TEST(LowerLevel, BackwardOutOfOrderFillsNoBufferTwice) {
  const std::vector<float> expected = {1 - 0.5625f, 1 - 1.125f, 1 - 1.6875f, 1 - 2.25f};
  for (int stage = 0; stage <= 3; ++stage) {
    const LogCapture log;
    EXPECT_EQ(train_by_hand(stage, {1, 2, 0, 3}, "", {5, 8000, 3, 1100}), expected) << stage;
    EXPECT_EQ(log.with("takes device memory beyond the plan").size(),
              stage >= 2 ? static_cast<std::size_t>(kRanks) : 0u)
        << "once for each rank; stages 0 and 1 write in place";
  }
}

/// Four equal parameters under stage 3, or another, driven by hand.
void with_sharded_model(const std::string& zero, const std::function<void(ShardedModel&)>& body,
                        int stage = 3) {
  RunOptions options = probe_options(
      {4096, 4096, 4096, 4096}, [](int, const Moment&) { return 0.0f; }, 2);
  options.body = [&](Engine& engine, Module&, int) { body(engine.model()); };
  run_engine(
      concat(
          R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
                        "zero_optimization": {"stage3_param_persistence_threshold": 0, )",
          zero, zero.empty() ? "" : ", ", R"("stage": )", stage, "}}"),
      options);
}

void use(ShardedModel& model, const std::vector<ConstView>& views) {
  model.compute().launch("use", {reads(views[0])}, [view = views[0]] {
    ZERO3D_CHECK(view.as<float>()[0] == 1.0f, "the parameter's value");
  });
}

TEST(LowerLevel, GradientsThatNobodyTookAreNotReady) {
  with_sharded_model("", [](ShardedModel& model) {
    model.begin_training(0);
    model.begin_backward(0, true);
    model.acquire(backward_of(3));
    EXPECT_THROW(model.release(backward_of(3)), Error);
  });
}

/// What an abandoned pass kept for its backward is given up, so that the next may gather over it.
TEST(LowerLevel, APassMayBeAbandoned) {
  with_sharded_model(R"("stage3_max_reuse_distance": 1000000000)", [](ShardedModel& model) {
    for (int pass = 0; pass < 3; ++pass) {
      model.begin_training(0);
      for (int block = 0; block < 3; ++block) {
        use(model, model.acquire(forward_of(block)));
        model.release(forward_of(block));
      }
    }
    model.synchronize();
  });
}

/// An update waits for gathers of what it writes: of the last update's parameters, and of a pass
/// given up before it came to them.
TEST(LowerLevel, AnUpdateNeedsNobodyToHaveAcquiredItsParameters) {
  for (int stage = 0; stage <= 3; ++stage) {
    with_sharded_model(
        "",
        [](ShardedModel& model) {
          for (int step = 0; step < 3; ++step) {
            model.begin_training(0);
            model.acquire(forward_of(0));  // and the gathers of others ahead of their use
            model.release(forward_of(0));
            model.begin_backward(0, true);
            for (const int block : {3, 2, 1, 0}) {
              const View target = model.gradients(backward_of(block))[0].view;
              model.compute().launch("gradient", {writes(target)}, [target] {
                for (std::int64_t i = 0; i < target.numel(); ++i) target.as<float>()[i] = 1.0f;
              });
              model.reducer().ready(model.plan().layout.block_units(block)[0], 0);
            }
            EXPECT_TRUE(model.step().applied);
          }
          model.synchronize();
        },
        stage);
  }
}

TEST(LowerLevel, WhatIsGatheredOnDemandIsFreedAfterItsUse) {
  with_sharded_model(R"("stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0)",
                     [](ShardedModel& model) {
                       const auto gathered = [&] {
                         const MemoryUse use = model.device().memory().use();
                         return use.categories[Category::gathered_parameters].current + use.parked;
                       };
                       model.begin_training(0);
                       const std::int64_t planned = gathered();
                       for (const int block : {3, 1, 2, 0, 3, 2}) {
                         use(model, model.acquire(forward_of(block)));
                         EXPECT_LE(gathered(), planned + 4 * 4096) << "one unit beside the arena";
                         model.release(forward_of(block));
                         model.synchronize();
                       }
                     });
}

TEST(LowerLevel, ANewPlanWaitsForWorkOnTheOldOnesMemory) {
  with_sharded_model(R"("stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0)",
                     [](ShardedModel& model) {
                       model.begin_training(0);
                       const std::vector<ConstView> before = model.acquire(forward_of(0));
                       use(model, before);
                       model.release(forward_of(0));
                       model.reserve_activations(1 << 20);
                       model.begin_training(0);
                       const std::vector<ConstView> after = model.acquire(forward_of(0));
                       EXPECT_EQ(after[0].data(), before[0].data())
                           << "the test needs the memory to be taken again";
                       use(model, after);
                       model.release(forward_of(0));
                       model.synchronize();
                     });
}

TEST(LowerLevel, AGatherOnDemandWaitsForWhatUsedItsMemory) {
  with_sharded_model(R"("stage3_prefetch_bucket_size": 0)", [](ShardedModel& model) {
    model.begin_training(0);
    Tensor activation(model.device().memory(), model.compute(), DType::f32, Shape{4096},
                      Category::activations);
    const View view = activation.view();
    model.compute().launch("activation", {writes(view)}, [view] { view.as<float>()[0] = 7.0f; });
    const void* memory = view.data();
    activation.reset();
    const std::vector<ConstView> views = model.acquire(forward_of(3));
    EXPECT_EQ(views[0].data(), memory)
        << "the test needs the gather to take the activation's memory";
    use(model, views);
    model.release(forward_of(3));
    model.synchronize();
  });
}

}  // namespace
}  // namespace zero3d::test
