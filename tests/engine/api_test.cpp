// What the calls of the engine mean: forward, backward and step against train_batch, accumulation
// boundaries, scopes, losses, evaluation in between.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "api.h"
#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

TEST(Calls, ForwardBackwardStepAreTrainBatch) {
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult apart = run_engine(json_of(stage, kAccumulation), nano());
    RunOptions options = nano();
    options.body = [](Engine& engine, Module&, int rank) { train_batches(engine, rank); };
    const RunResult together = run_engine(json_of(stage, kAccumulation), options);
    EXPECT_EQ(apart.steps.back().loss, together.steps.back().loss);
    EXPECT_EQ(apart.steps.back().grad_norm, together.steps.back().grad_norm);
    EXPECT_TRUE(same_state(apart.state, together.state)) << stage;
  }
}

TEST(Calls, CountersFollowTheBoundary) {
  RunOptions options = nano();
  options.body = [](Engine& engine, Module&, int rank) {
    EXPECT_TRUE(std::isnan(engine.get_global_grad_norm()));
    EXPECT_FALSE(engine.was_step_applied());
    for (int micro = 0; micro < 2 * kAccumulation; ++micro) {
      EXPECT_EQ(engine.micro_steps(), micro);
      EXPECT_EQ(engine.global_steps(), micro / kAccumulation);
      EXPECT_EQ(engine.is_gradient_accumulation_boundary(), micro % kAccumulation == 2);
      const TokenBatch batch = batch_at(rank, micro / kAccumulation, micro % kAccumulation);
      engine.forward(batch.view());
      EXPECT_GT(engine.loss(), 0.0);
      engine.backward();
      engine.step();
    }
    EXPECT_EQ(engine.global_steps(), 2);
    EXPECT_EQ(engine.global_samples(), 2 * 2 * kRanks * kAccumulation);
    EXPECT_EQ(engine.skipped_steps(), 0);
    EXPECT_TRUE(engine.was_step_applied());
    EXPECT_GT(engine.get_global_grad_norm(), 0.0);
    EXPECT_EQ(engine.last_step().tokens, 2 * kNanoSequence * kRanks * kAccumulation);
    EXPECT_EQ(engine.get_lr(), std::vector<double>(engine.get_lr().size(), 0.01));
  };
  run_engine(json_of(2, kAccumulation), options);
}

TEST(Calls, OutOfOrderAreErrorsThatSayWhatToDo) {
  for (int stage = 0; stage <= 3; ++stage) {
    RunOptions options = nano();
    options.body = [](Engine& engine, Module&, int rank) {
      const TokenBatch batch = batch_at(rank, 0, 0);
      expect_error([&] { engine.backward(); }, "backward() without a forward()");
      expect_error([&] { engine.loss(); }, "loss() without a forward");
      expect_error([&] { engine.step(); }, "step() without a backward()");
      engine.forward(batch.view());
      expect_error([&] { engine.forward(batch.view()); }, "forward() between forward() and its");
      expect_error([&] { engine.step(); }, "step() between forward() and its backward()");
      const MicroBatch view = batch.view();
      expect_error([&] { engine.eval_batch({&view, 1}); }, "eval_batch() between forward()");
      engine.backward();
      expect_error([&] { engine.backward(); }, "backward() without a forward()");
      engine.step();
      expect_error([&] { engine.step(); }, "step() without a backward()");
      const std::vector<MicroBatch> window(kAccumulation, view);
      expect_error([&] { engine.train_batch(window); }, "within an accumulation window");
      for (int micro = 1; micro < kAccumulation; ++micro) {
        const TokenBatch next = batch_at(rank, 0, micro);
        engine.forward(next.view());
        engine.backward();
        if (micro + 1 < kAccumulation) engine.step();
      }
      expect_error([&] { engine.forward(view); }, "call step() first");
      engine.step();
      expect_error([&] { engine.train_batch({&view, 1}); }, "takes the 3 micro-batches of a step");
      train_batches(engine, rank, 1);
      EXPECT_EQ(engine.global_steps(), 2);
    };
    run_engine(json_of(stage, kAccumulation), options);
  }
}

TEST(Calls, BatchesOfTheWrongFormAreRefused) {
  RunOptions options = nano();
  options.body = [](Engine& engine, Module&, int rank) {
    const TokenBatch batch = batch_at(rank, 0, 0);
    const TokenBatch shorter(2, kNanoSequence - 1);
    MicroBatch bad{batch.view().tokens, shorter.view().targets};
    expect_error([&] { engine.forward(bad); }, "targets must be int32 [2, 8]");
    bad.targets = ConstView();
    expect_error([&] { engine.forward(bad); }, "a batch needs targets");
    bad.tokens = batch.view().tokens.flat(0, 5);
    expect_error([&] { engine.forward(bad); }, "tokens must be int32 [batch, sequence]");
    bad.tokens = ConstView();
    expect_error([&] { engine.forward(bad); }, "tokens must be int32 [batch, sequence]");
    train_batches(engine, rank, 1);  // nothing was disturbed
  };
  run_engine(json_of(3, kAccumulation), options);
}

/// The parameters are gathered into new memory, which work enqueued before may still be using.
TEST(Calls, AMicroBatchOfAnotherShapeWithinAWindowIsPlannedAnew) {
  RunOptions options = nano_options(nano_llama(false), kRanks, 2);
  options.body = [](Engine& engine, Module&, int) {
    const auto run = [&](std::int64_t rows, std::int64_t length) {
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * length), 3);
      const ConstView view(reinterpret_cast<const std::byte*>(ids.data()), DType::i32,
                           Shape{rows, length});
      engine.forward({view, view});
      engine.backward();
      engine.step();
    };
    run(8, 4);
    run(1, 16);
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_TRUE(std::isfinite(engine.get_global_grad_norm()));
  };
  const std::string zero =
      R"("stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0)";
  run_engine(json_of(3, 2, "", zero), options);
}

TEST(Knobs, AllgatherBucketSizeCutsTheGatherOfUpdatedParameters) {
  const auto gathers = [](const std::string& size) {
    const RunResult result =
        run_engine(json_of(1, 1, "", concat(R"("allgather_bucket_size": )", size)), nano(1));
    CommVolume volume = result.volumes.at(0);
    return volume.operations["all_gather"];
  };
  const CommVolume::Entry whole = gathers("500000000");
  const CommVolume::Entry cut = gathers("2");
  EXPECT_EQ(whole.elements, cut.elements);
  EXPECT_LT(whole.calls, cut.calls);
}

TEST(Boundary, SetByHandEndsTheWindow) {
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult expected = run_engine(json_of(stage, kAccumulation), nano());
    RunOptions options = nano();
    options.body = [](Engine& engine, Module&, int rank) {
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < kAccumulation; ++micro) {
          engine.set_gradient_accumulation_boundary(micro + 1 == kAccumulation);
          const TokenBatch batch = batch_at(rank, step, micro);
          engine.forward(batch.view());
          engine.backward();
          engine.step();
        }
      }
    };
    EXPECT_TRUE(
        same_state(expected.state, run_engine(json_of(stage, kAccumulation), options).state))
        << stage;
    // Decided only after the backward.
    options.body = [](Engine& engine, Module&, int rank) {
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < kAccumulation; ++micro) {
          engine.set_gradient_accumulation_boundary(false);
          const TokenBatch batch = batch_at(rank, step, micro);
          engine.forward(batch.view());
          engine.backward();
          engine.set_gradient_accumulation_boundary(micro + 1 == kAccumulation);
          engine.step();
        }
      }
    };
    EXPECT_TRUE(
        same_state(expected.state, run_engine(json_of(stage, kAccumulation), options).state))
        << stage;
  }
}

TEST(Boundary, UnmanagedEveryStepIsOne) {
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult expected = run_engine(json_of(stage, kAccumulation), nano());
    const std::string json =
        json_of(stage, kAccumulation, R"("managed_gradient_accumulation": false)");
    RunOptions options = nano();
    options.body = [](Engine& engine, Module&, int rank) {
      expect_error([&] { engine.set_gradient_accumulation_boundary(true); },
                   "accumulation is not managed");
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < kAccumulation; ++micro) {
          const TokenBatch batch = batch_at(rank, step, micro);
          engine.forward(batch.view());
          engine.backward();
        }
        engine.step();
        EXPECT_EQ(engine.global_steps(), step + 1);
      }
    };
    EXPECT_TRUE(same_state(expected.state, run_engine(json, options).state)) << stage;
    options.body = [](Engine& engine, Module&, int rank) { train_batches(engine, rank); };
    EXPECT_TRUE(same_state(expected.state, run_engine(json, options).state)) << stage;
  }
}

TEST(Scopes, NoSyncLeavesTheReductionToTheLastBackward) {
  for (const int accumulation : {1, kAccumulation}) {
    for (int stage = 0; stage <= 1; ++stage) {
      RunOptions by_hand = nano(accumulation);
      by_hand.body = [](Engine& engine, Module&, int rank) {
        for (int micro = 0; micro < kAccumulation; ++micro) {
          engine.set_gradient_accumulation_boundary(micro + 1 == kAccumulation);
          const TokenBatch batch = batch_at(rank, 0, micro);
          engine.forward(batch.view());
          engine.backward();
          engine.step();
        }
      };
      RunOptions scoped = nano(accumulation);
      scoped.body = [](Engine& engine, Module&, int rank) {
        engine.no_sync([&] {
          for (int micro = 0; micro + 1 < kAccumulation; ++micro) {
            const TokenBatch batch = batch_at(rank, 0, micro);
            engine.forward(batch.view());
            engine.backward();
            expect_error([&] { engine.step(); }, "step() inside no_sync");
            expect_error([&] { engine.no_sync([] {}); }, "do not nest");
          }
        });
        engine.set_gradient_accumulation_boundary(true);
        const TokenBatch batch = batch_at(rank, 0, kAccumulation - 1);
        engine.forward(batch.view());
        engine.backward();
        engine.step();
      };
      const std::string json = json_of(stage, accumulation);
      EXPECT_TRUE(same_state(run_engine(json, by_hand).state, run_engine(json, scoped).state))
          << "stage " << stage << ", accumulation " << accumulation;
    }
  }
  for (int stage = 2; stage <= 3; ++stage) {
    RunOptions options = nano(1);
    options.body = [](Engine& engine, Module&, int) {
      expect_error([&] { engine.no_sync([] {}); }, "no_sync needs ZeRO stage 0 or 1");
    };
    run_engine(json_of(stage, 1), options);
  }
}

TEST(Scopes, CoalescedMicroBatchesAreReducedAsOne) {
  for (int stage = 1; stage <= 3; ++stage) {
    const RunResult expected = run_engine(json_of(1, kAccumulation), nano());
    RunOptions options = nano();
    options.body = [](Engine& engine, Module&, int rank) {
      for (int step = 0; step < 3; ++step) {
        engine.coalesce_grad_reduction([&] {
          for (int micro = 0; micro < kAccumulation; ++micro) {
            const TokenBatch batch = batch_at(rank, step, micro);
            engine.forward(batch.view());
            engine.backward();
          }
        });
        engine.set_gradient_accumulation_boundary(true);
        engine.step();
      }
    };
    // Micro-batches first, then ranks: the order of stage 1.
    EXPECT_TRUE(
        same_state(expected.state, run_engine(json_of(stage, kAccumulation), options).state))
        << stage;
  }
}

/// A scope that ends by an exception keeps the micro-batches whose backward is done, and later
/// steps are those of a run without scopes.
TEST(Scopes, AnExceptionEndsTheScopeAndKeepsWhatWasDone) {
  const std::string top = R"("managed_gradient_accumulation": false)";
  for (int stage = 0; stage <= 3; ++stage) {
    const auto run_with = [&](bool throws) {
      RunOptions options = nano();
      options.body = [=](Engine& engine, Module&, int rank) {
        const auto run_micro = [&](int step, int micro) {
          const TokenBatch batch = batch_at(rank, step, micro);
          engine.forward(batch.view());
          engine.backward();
        };
        const auto body = [&] {
          run_micro(0, 0);
          run_micro(0, 1);
          if (throws) throw std::runtime_error("out of data");
        };
        const auto scoped = [&] {
          return stage == 0 ? engine.no_sync(body) : engine.coalesce_grad_reduction(body);
        };
        if (throws) {
          EXPECT_THROW(scoped(), std::runtime_error);
        } else {
          scoped();
        }
        engine.step();
        for (int micro = 0; micro < kAccumulation; ++micro) run_micro(1, micro);
        engine.step();
        EXPECT_EQ(engine.global_steps(), 2);
      };
      return run_engine(json_of(stage, kAccumulation, top), options);
    };
    EXPECT_TRUE(same_state(run_with(false).state, run_with(true).state)) << stage;
  }
}

/// Micro-batches whose targets are all ignored have no loss, and the gradient zero.
TEST(Losses, OfMicroBatchesWithoutATargetAreLeftOut) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto run_with = [&](int with_targets, std::vector<StepResult>& steps, double& evaluated) {
      RunOptions options = nano();
      options.body = [&](Engine& engine, Module&, int rank) {
        std::vector<TokenBatch> batches;
        std::vector<MicroBatch> views;
        for (int micro = 0; micro < kAccumulation; ++micro) {
          batches.push_back(batch_at(rank, 0, micro));
          if (rank * kAccumulation + micro >= with_targets)
            std::fill(batches.back().targets.begin(), batches.back().targets.end(), -100);
        }
        for (const TokenBatch& batch : batches) views.push_back(batch.view());
        const double loss = engine.eval_batch(views);
        const StepResult result = engine.train_batch(views);
        EXPECT_EQ(std::isnan(engine.loss()), (rank + 1) * kAccumulation > with_targets);
        if (rank != 0) return;
        evaluated = loss;
        steps.push_back(result);
      };
      run_engine(json_of(stage, kAccumulation, R"("gradient_clipping": 0)"), options);
    };
    std::vector<StepResult> steps;
    double evaluated = 0;
    double sum = 0;
    for (int with_targets = 0; with_targets <= kRanks * kAccumulation; ++with_targets) {
      run_with(with_targets, steps, evaluated);
      const StepResult& step = steps.back();
      EXPECT_EQ(step.ignored_micro_batches, kRanks * kAccumulation - with_targets);
      EXPECT_FALSE(step.skipped);
      if (with_targets == 0) {
        EXPECT_TRUE(std::isnan(step.loss)) << step.loss;
        EXPECT_TRUE(std::isnan(evaluated)) << evaluated;
        EXPECT_EQ(step.grad_norm, 0);
        continue;
      }
      EXPECT_NEAR(evaluated, step.loss, 1e-6);
      const double added = step.loss * with_targets - sum;  // of one more micro-batch
      EXPECT_GT(added, 1.0) << "a random model's loss";
      EXPECT_LT(added, 20.0);
      EXPECT_GT(step.grad_norm, 0);
      sum = step.loss * with_targets;
    }
  }
}

/// What the same gradients give is theirs over all micro-batches, whoever has a target.
TEST(Losses, GradientsAreDividedByAllMicroBatches) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto norm_of = [&](int ignored) {
      double norm = 0;
      RunOptions options = nano();
      options.body = [&](Engine& engine, Module&, int rank) {
        std::vector<TokenBatch> batches(kAccumulation, batch_at(0, 0, 0));
        for (int micro = 0; micro < ignored; ++micro)
          std::fill(batches[static_cast<std::size_t>(micro)].targets.begin(),
                    batches[static_cast<std::size_t>(micro)].targets.end(), -100);
        std::vector<MicroBatch> views;
        for (const TokenBatch& batch : batches) views.push_back(batch.view());
        const double result = engine.train_batch(views).grad_norm;
        if (rank == 0) norm = result;
      };
      run_engine(json_of(stage, kAccumulation, R"("gradient_clipping": 0)"), options);
      return norm;
    };
    const double all = norm_of(0);
    EXPECT_NEAR(norm_of(1), all * 2 / 3, 1e-5 * all) << stage;
    EXPECT_NEAR(norm_of(2), all / 3, 1e-5 * all) << stage;
  }
}

TEST(Evaluation, TakesNoneOfAStepsTime) {
  constexpr double kSeconds = 0.3;
  std::atomic<bool> slow = false;
  const auto blocks = [&](int) {
    std::vector<ProbeBlockSpec> result =
        probe_blocks({5, 3}, [](int, const ProbeClock&) { return 1.0f; });
    result[1].on_stream = [&](bool) {
      if (slow) std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
    };
    return result;
  };
  for (const bool within_a_window : {false, true}) {
    RunOptions options = probe_options(blocks, 1);
    options.body = [&](Engine& engine, Module&, int) {
      const TokenBatch batch(2, 1);
      const MicroBatch view = batch.view();
      const std::vector<MicroBatch> window(2, view);
      engine.train_batch(window);
      const std::int64_t begin = now_ns();
      if (within_a_window) {
        engine.forward(view);
        engine.backward();
        engine.step();
      }
      slow = true;
      engine.eval_batch({&view, 1});
      slow = false;
      for (int micro = within_a_window ? 1 : 0; micro < 2; ++micro) {
        engine.forward(view);
        engine.backward();
        engine.step();
      }
      const double all = static_cast<double>(now_ns() - begin) * 1e-9;
      EXPECT_LT(engine.last_step().seconds, all - 0.8 * kSeconds);
      EXPECT_GE(engine.last_step().seconds, 0);
    };
    run_engine(json_of(1, 2), options);
  }
}

TEST(Evaluation, DisturbsNothing) {
  for (int stage = 0; stage <= 3; ++stage) {
    const RunResult expected = run_engine(json_of(stage, kAccumulation), nano());
    RunOptions options = nano();
    std::vector<double> losses(kRanks);
    options.body = [&](Engine& engine, Module&, int rank) {
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < kAccumulation; ++micro) {
          const TokenBatch batch = batch_at(rank, step, micro);
          const TokenBatch longer = nano_batch({rank, 9, micro}, kRanks, 1, 3, 11);
          const MicroBatch views[] = {longer.view(), batch.view()};
          const double before = engine.eval_batch(views);
          EXPECT_EQ(engine.eval_batch(views), before) << "evaluation is repeatable";
          losses[static_cast<std::size_t>(rank)] = before;
          engine.forward(batch.view());
          engine.backward();
          engine.next_logits(std::vector<std::int32_t>{1, 2, 3});
          engine.step();
        }
      }
    };
    EXPECT_TRUE(
        same_state(expected.state, run_engine(json_of(stage, kAccumulation), options).state))
        << stage;
    EXPECT_EQ(losses[0], losses[1]) << "the mean of all ranks on every rank";
  }
}

TEST(Evaluation, IsTheTrainingLossOfTheSameParameters) {
  RunOptions options = nano(1);
  options.body = [](Engine& engine, Module&, int rank) {
    const TokenBatch batch = batch_at(rank, 0, 0, 1);
    const MicroBatch view = batch.view();
    const double evaluated = engine.eval_batch({&view, 1});
    EXPECT_EQ(engine.train_batch({&view, 1}).loss, evaluated);
  };
  for (int stage = 0; stage <= 3; ++stage) run_engine(json_of(stage, 1), options);
}

}  // namespace
}  // namespace zero3d::test
