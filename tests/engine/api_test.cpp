// What the calls of the engine mean: forward, backward and step against train_batch, accumulation
// boundaries, evaluation in between, access to whole parameters, tied parameters.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

std::string json_of(int stage, int accumulation, const std::string& top = "",
                    const std::string& zero = "") {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                accumulation,
                R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})",
                top.empty() ? "" : ", ", top,
                R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
                stage, zero.empty() ? "" : ", ", zero, "}}");
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << error.what();
    return error.what();
  }
  return "no error";
}

void expect_error(const std::function<void()>& call, const std::string& part) {
  const std::string message = message_of(call);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

constexpr int kRanks = 2;
constexpr int kAccumulation = 3;

RunOptions nano(int accumulation = kAccumulation) {
  return nano_options(nano_gpt2(true), kRanks, accumulation);
}

TokenBatch batch_at(int rank, int step, int micro, int accumulation = kAccumulation) {
  return nano_batch({rank, step, micro}, kRanks, accumulation, 2);
}

/// Three steps of the default batches by train_batch.
void train_batches(Engine& engine, int rank, int steps = 3) {
  for (int step = 0; step < steps; ++step) {
    std::vector<TokenBatch> batches;
    std::vector<MicroBatch> views;
    for (int micro = 0; micro < kAccumulation; ++micro)
      batches.push_back(batch_at(rank, step, micro));
    for (const TokenBatch& batch : batches) views.push_back(batch.view());
    engine.train_batch(views);
  }
}

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

TEST(WithParameters, OneRankWritesAndMastersFollow) {
  constexpr char kName[] = "transformer.h.1.mlp.c_fc.weight";
  for (const bool bf16 : {false, true}) {
    for (const char* threshold : {"0", "100000"}) {
      for (int stage = 0; stage <= 3; ++stage) {
        SCOPED_TRACE(concat("stage ", stage, ", bf16 ", bf16, ", persistence ", threshold));
        const std::string json =
            concat(R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW",
                       "params": {"lr": 0.01}}, "bf16": {"enabled": )",
                   bf16 ? "true" : "false", R"(}, "zero_optimization": {"stage": )", stage,
                   R"(, "stage3_param_persistence_threshold": )", threshold, "}}");
        const RunResult untouched = run_engine(json, nano(1));
        RunOptions options = nano(1);
        options.after = [&](Engine& engine, int rank) {
          engine.model().with_parameters({kName}, -1, [&](const ParameterSpec& spec, View view) {
            EXPECT_EQ(spec.name, kName);
            EXPECT_EQ(view.shape(), (Shape{16, 64}));
          });
          engine.model().with_parameters({kName}, 1, [&](const ParameterSpec&, View view) {
            for (std::int64_t i = 0; i < view.numel(); ++i) {
              const float value = rank == 1 ? 0.5f + static_cast<float>(i % 7) : -1.0f;
              if (bf16) {
                view.as<zero3d::bf16>()[i] = to_bf16(value);
              } else {
                view.as<float>()[i] = value;
              }
            }
          });
        };
        const RunResult written = run_engine(json, options);
        ModelState expected = untouched.state;
        ParameterState& changed = expected.at(kName);
        const std::size_t count = 16 * 64;
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = 0.5f + static_cast<float>(i % 7);
        const auto bytes_of = [](const auto& vector) {
          const auto* data = reinterpret_cast<const std::byte*>(vector.data());
          return std::vector<std::byte>(data, data + vector.size() * sizeof(vector[0]));
        };
        if (bf16) {
          std::vector<zero3d::bf16> halves;
          for (const float value : values) halves.push_back(to_bf16(value));
          changed.value = bytes_of(halves);
          changed.master = bytes_of(values);
        } else {
          changed.value = bytes_of(values);
        }
        EXPECT_TRUE(same_state(expected, written.state));
      }
    }
  }
}

TEST(WithParameters, TrainingGoesOnFromWhatWasWritten) {
  for (const char* more : {"", R"("zero_hpz_partition_size": 2)"}) {
    std::vector<double> losses;
    for (const int stage : {0, 3}) {
      RunOptions options = nano(1);
      options.body = [&](Engine& engine, Module&, int rank) {
        double loss = 0;
        for (int step = 0; step < 2; ++step) {
          const TokenBatch batch = batch_at(rank, step, 0, 1);
          const MicroBatch view = batch.view();
          loss = engine.train_batch({&view, 1}).loss;
          engine.model().with_parameters({"transformer.wte.weight", "transformer.ln_f.weight"}, 0,
                                         [&](const ParameterSpec&, View values) {
                                           for (std::int64_t i = 0; i < values.numel(); ++i)
                                             values.as<float>()[i] *= 1.5f;
                                         });
        }
        if (rank == 0) losses.push_back(loss);
      };
      run_engine(json_of(stage, 1, "", stage == 3 ? more : ""), options);
    }
    EXPECT_EQ(losses[0], losses[1]);
  }
}

TEST(WithParameters, AnUnknownNameIsAnError) {
  RunOptions options = nano(1);
  options.body = [](Engine& engine, Module&, int) {
    expect_error(
        [&] { engine.model().with_parameters({"nobody"}, -1, [](const ParameterSpec&, View) {}); },
        "no parameter named nobody");
  };
  run_engine(json_of(3, 1), options);
}

/// Buffers hold what an earlier micro-batch wrote there.
TEST(Gradients, OnesThatABlockOnlyAsksForAreZero) {
  for (const bool bf16 : {false, true}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const auto blocks = [](int) {
        ProbeParameter sometimes =
            probe_parameter("sometimes", Shape{1500}, [](const ProbeClock&) { return 3.0f; });
        sometimes.takes_part = [](const ProbeClock& at) { return at.step == 0; };
        const ProbeParameter always =
            probe_parameter("always", Shape{7}, [](const ProbeClock&) { return 1.0f; });
        return std::vector<ProbeBlockSpec>{{{sometimes}}, {{always, sometimes}}};
      };
      const RunResult result = run_engine(
          json_of(stage, 2, bf16 ? R"("bf16": {"enabled": true})" : ""), probe_options(blocks, 2));
      for (std::size_t step = 0; step < 3; ++step) {
        for (const float value : result.gradients[step].at("sometimes"))
          ASSERT_EQ(value, step == 0 ? 6.0f : 0.0f) << "stage " << stage << ", step " << step;
        for (const float value : result.gradients[step].at("always")) ASSERT_EQ(value, 1.0f);
      }
    }
  }
}

TEST(Tied, GradientsOfAllUsersAddUp) {
  for (const bool adds : {false, true}) {
    for (const bool bf16 : {false, true}) {
      for (const int accumulation : {1, 2}) {
        for (int stage = 0; stage <= 3; ++stage) {
          SCOPED_TRACE(concat("adds ", adds, ", bf16 ", bf16, ", accumulation ", accumulation,
                              ", stage ", stage));
          const auto blocks = [&](int) {
            const auto tied = [&](float c) {
              ProbeParameter parameter =
                  probe_parameter("tied", Shape{1500}, [c](const ProbeClock&) { return c; });
              parameter.spec.adds_gradient = adds;
              return parameter;
            };
            const auto own = [](const char* name) {
              return probe_parameter(name, Shape{7}, [](const ProbeClock&) { return 1.0f; });
            };
            return std::vector<ProbeBlockSpec>{
                {{tied(3.0f), own("a")}}, {{own("b")}}, {{own("c"), tied(5.0f)}}};
          };
          const RunResult result =
              run_engine(json_of(stage, accumulation,
                                 bf16 ? R"("gradient_clipping": 0, "bf16": {"enabled": true})"
                                      : R"("gradient_clipping": 0)"),
                         probe_options(blocks, 2));
          for (const auto& gradients : result.gradients) {
            for (const float value : gradients.at("tied")) ASSERT_EQ(value, 8.0f);
            for (const float value : gradients.at("b")) ASSERT_EQ(value, 1.0f);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zero3d::test
