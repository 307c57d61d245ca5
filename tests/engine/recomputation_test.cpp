// Forward computed again before backward: where the operations stand in a list, what blocks see of
// it, that no bit changes, and that memory is what the plan says.
#include "zero3d/engine/recomputation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "schedules.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

Op forward_keeping(int block, Keep keep) {
  Op op = forward_of(block);
  op.keep = keep;
  return op;
}

TEST(Recomputation, TakesBlocksInGroupsUpToTheLast) {
  const auto expect = [](const StageBlocks& stage, const RecomputationSettings& settings,
                         const std::vector<int>& groups) {
    EXPECT_EQ(recomputed_groups(stage, settings), groups)
        << stage.blocks << " blocks from " << stage.backward_down_to << ", interval "
        << settings.interval << ", groups " << settings.groups;
  };
  expect({6, 0}, {}, {});
  expect({6, 0}, {.interval = 1}, {0, 1, 2, 3, 4});
  expect({6, 0}, {.interval = 2}, {0, 2, 4});
  expect({6, 0}, {.interval = 5}, {0});
  expect({6, 0}, {.interval = std::numeric_limits<int>::max()}, {0});
  expect({6, 2}, {.interval = 2}, {2, 4});
  expect({6, 0}, {.groups = 1}, {0});
  expect({6, 0}, {.groups = 2}, {0, 2});
  expect({6, 0}, {.groups = 4}, {0, 1, 2, 3});
  expect({6, 0}, {.groups = std::numeric_limits<int>::max()}, {0, 1, 2, 3, 4});
  for (const RecomputationSettings& some : {RecomputationSettings{.interval = 2}, {.groups = 2}}) {
    expect({6, 5}, some, {});
    expect({6, 6}, some, {});  // all frozen
    expect({1, 0}, some, {});
  }
}

TEST(Recomputation, StandsRightBeforeBackwardOfItsGroup) {
  const StageBlocks stage{5, 1};
  const std::vector<Op> expected{{.kind = OpKind::load_batch},
                                 forward_of(0),
                                 forward_keeping(1, Keep::inputs),
                                 forward_keeping(2, Keep::nothing),
                                 forward_keeping(3, Keep::inputs),
                                 forward_of(4),
                                 {.kind = OpKind::loss_gradient, .block = 4},
                                 backward_of(4),
                                 recompute_of(3),
                                 backward_of(3),
                                 recompute_of(1),
                                 recompute_of(2),
                                 backward_of(2),
                                 backward_of(1)};
  const std::vector<Op> plain = plan_step(stage, 1);
  EXPECT_EQ(with_recomputation(plain, stage, {.interval = 2}, false), expected);
  EXPECT_EQ(with_recomputation(plain, stage, {}, false), plain);
  EXPECT_EQ(with_recomputation(expected, stage, {.interval = 1}, false), expected)
      << "placed by hand";
}

TEST(Recomputation, FetchesInputsOneGroupAhead) {
  const StageBlocks stage{5, 1};
  const std::vector<Op> expected{{.kind = OpKind::load_batch},
                                 forward_of(0),
                                 forward_keeping(1, Keep::inputs_on_host),
                                 forward_keeping(2, Keep::nothing),
                                 forward_keeping(3, Keep::inputs_on_host),
                                 forward_of(4),
                                 {.kind = OpKind::loss_gradient, .block = 4},
                                 fetch_inputs_of(3),
                                 backward_of(4),
                                 fetch_inputs_of(1),
                                 recompute_of(3),
                                 backward_of(3),
                                 recompute_of(1),
                                 recompute_of(2),
                                 backward_of(2),
                                 backward_of(1)};
  const std::vector<Op> plain = plan_step(stage, 1);
  EXPECT_EQ(with_recomputation(plain, stage, {.interval = 2}, true), expected);
  EXPECT_EQ(with_recomputation(plain, stage, {}, true), plain);
  EXPECT_EQ(with_recomputation(expected, stage, {.interval = 1}, true), expected) << "by hand";
}

TEST(Recomputation, MakesAStepOfEveryStep) {
  for (const int down_to : {0, 2, 5}) {
    const StageBlocks stage{6, down_to};
    for (const RecomputationSettings& settings :
         {RecomputationSettings{.interval = 1}, {.interval = 2}, {.interval = 9}, {.groups = 2}}) {
      std::vector<std::vector<Op>> lists{plan_step(stage, 4)};
      for (const NamedSchedule& c : hand_written_schedules()) lists.push_back(c.schedule(stage, 4));
      const std::size_t groups = recomputed_groups(stage, settings).size();
      for (const std::vector<Op>& ops : lists) {
        for (const bool on_host : {false, true}) {
          const std::vector<Op> made = with_recomputation(ops, stage, settings, on_host);
          require_step(made, stage, 4);
          EXPECT_EQ(made.size() - ops.size(),
                    4 * (static_cast<std::size_t>(5 - down_to) + (on_host ? groups : 0)));
        }
      }
    }
    const RecomputationSettings two{.interval = 2};
    for (const bool on_host : {false, true})
      EXPECT_EQ(without_repetitions(with_recomputation(plan_step(stage, 100), stage, two, on_host)),
                with_recomputation(plan_step(stage, 2), stage, two, on_host));
  }
}

TEST(Recomputation, IsRefusedWhereItCannotRun) {
  const StageBlocks stage{5, 1};
  for (const bool on_host : {false, true}) {
    const std::vector<Op> good = with_recomputation(interleaved(stage, 2), stage,
                                                    RecomputationSettings{.interval = 2}, on_host);
    require_step(good, stage, 2);
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::vector<Op> missing = good;
      missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_THROW(require_step(missing, stage, 2), Error) << "without operation " << i;
      std::vector<Op> twice = good;
      twice.insert(twice.begin() + static_cast<std::ptrdiff_t>(i), good[i]);
      EXPECT_THROW(require_step(twice, stage, 2), Error) << "operation " << i << " twice";
    }
  }
  const auto refused = [&](std::vector<Op> ops, const Op& op, Keep keep) {
    std::find(ops.begin(), ops.end(), op)->keep = keep;
    EXPECT_THROW(require_step(ops, stage, 1), Error);
  };
  const std::vector<Op> plain = plan_step(stage, 1);
  refused(plain, forward_of(0), Keep::inputs);  // frozen
  refused(plain, forward_of(4), Keep::inputs);  // last
  refused(plain, forward_of(4), Keep::inputs_on_host);
  refused(plain, forward_of(1), Keep::nothing);  // no group to be in
  refused(plain, forward_of(3), Keep::nothing);
  refused(plain, backward_of(3), Keep::inputs);  // no forward
  std::vector<Op> swapped = with_recomputation(plain, stage, {.interval = 3}, false);
  std::swap(*std::find(swapped.begin(), swapped.end(), recompute_of(1)),
            *std::find(swapped.begin(), swapped.end(), recompute_of(2)));
  EXPECT_THROW(require_step(swapped, stage, 1), Error) << "2 has no inputs before 1";
}

/// What blocks are called for, in order: "f0 f1 b1 f0 b0".
TEST(Recomputation, BlocksRunForwardOnceMore) {
  const auto calls = [](const char* members) {
    std::string seen;
    RunOptions options = probe_options(
        [&seen](int) {
          std::vector<ProbeBlockSpec> blocks;
          for (int i = 0; i < 4; ++i) {
            ProbeBlockSpec block{{probe_parameter(concat("p", i), Shape{2},
                                                  [](const ProbeClock&) { return 1.0f; })}};
            block.on_host = [&seen, i](bool forward) {
              append_item(seen, " ", forward ? "f" : "b", i);
            };
            blocks.push_back(std::move(block));
          }
          return blocks;
        },
        1);
    options.steps = 1;
    run_engine(concat(R"({"train_batch_size": 1, "optimizer": {"type": "SGD"})", members, "}"),
               options);
    return seen;
  };
  EXPECT_EQ(calls(""), "f0 f1 f2 f3 b3 b2 b1 b0");
  EXPECT_EQ(calls(R"(, "activation_checkpointing": {"partition_activations": false})"),
            "f0 f1 f2 f3 b3 b2 b1 b0");
  EXPECT_EQ(calls(R"(, "pipeline": {"activation_checkpoint_interval": 2})"),
            "f0 f1 f2 f3 b3 f2 b2 f0 f1 b1 b0");
  EXPECT_EQ(calls(R"(, "activation_checkpointing": {"cpu_checkpointing": true})"),
            "f0 f1 f2 f3 b3 f2 b2 f1 b1 f0 b0");
}

/// Doubles what it gets in place; its gradient is what it got.
class Doubling final : public Block {
 public:
  explicit Doubling(int index) : index_(index) {}
  std::string name() const override { return concat("doubling ", index_); }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = concat("p", index_);
    spec.shape = Shape{2};
    spec.initial = constant_values(0.0f);
    return {spec};
  }
  Values forward(BlockContext& context, Values values, Saved& saved) override {
    Stream& stream = context.stream();
    if (index_ == 0) {
      values.clear();
      values.push_back(context.allocate(DType::f32, Shape{2}));
      kernels::fill(stream, values[0], 1.0f);
    }
    if (context.saves()) {
      saved.tensors.push_back(context.allocate(DType::f32, Shape{2}));
      stream.device().copy(stream, saved.tensors[0], values[0]);
    }
    kernels::scale(stream, values[0], 2.0f);
    return values;
  }
  Values backward_inputs(BlockContext& context, Values, Saved& saved) override {
    kernels::convert(context.stream(), saved.tensors[0], context.write_gradient(0));
    return Values(1);  // no gradient of its input
  }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  int index_;
};

struct Doublings final : Module {
  Doublings() {
    for (int i = 0; i < 6; ++i) list.push_back(std::make_unique<Doubling>(i));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return list; }
  std::vector<std::unique_ptr<Block>> list;
};

TEST(Recomputation, ABlockMayWriteOverItsInputs) {
  for (const int interval : {0, 1, 2, 5}) {
    RunOptions options = probe_options(
        {1}, [](int, const Moment&) { return 1.0f; }, 1);
    options.steps = 1;
    options.make_module = [](int) { return std::make_unique<Doublings>(); };
    options.before_forward = {};
    const RunResult result = run_engine(
        concat(R"({"train_batch_size": 1, "gradient_clipping": 0, "optimizer": {"type": "SGD"},
                   "pipeline": {"activation_checkpoint_interval": )",
               interval, "}}"),
        options);
    for (int block = 0; block < 6; ++block)
      EXPECT_EQ(result.gradients[0].at(concat("p", block))[0], static_cast<float>(1 << block))
          << "interval " << interval;
  }
}

constexpr int kAccumulation = 4;

struct Scenario {
  const char* precision;
  int stage;
  bool frozen;  ///< Embeddings and the first layer, and some of the second.
};

RunOptions run_options(const Scenario& run) {
  ModelConfig model = nano_gpt2(!run.frozen);
  model.layers = 4;
  model.residual_dropout = model.attention_dropout = model.embedding_dropout = 0.1;
  RunOptions options = nano_options(model, 2, kAccumulation);
  options.engine.adjust = [frozen = run.frozen](ParameterSpec& spec) {
    for (const char* name : {"wpe", "wte", "h.0.", "h.1.mlp"})
      spec.frozen |= frozen && spec.name.find(name) != std::string::npos;
  };
  options.jitter_seed = run.stage == 3 ? 3 : 0;
  options.body = [](Engine& engine, Module&, int rank) {
    for (int step = 0; step < 2; ++step) {
      std::vector<TokenBatch> batches;
      std::vector<MicroBatch> views;
      for (int m = 0; m < kAccumulation; ++m)
        batches.push_back(nano_batch({rank, step, m}, 2, kAccumulation, 2));
      for (const TokenBatch& batch : batches) views.push_back(batch.view());
      engine.train_batch(views);
      engine.eval_batch(views);
    }
  };
  return options;
}

std::string json_of(const Scenario& run, const std::string& members) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )", kAccumulation,
      R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": )",
      run.stage, R"(, "stage3_param_persistence_threshold": 100, "reduce_bucket_size": 2000,
          "stage3_max_reuse_distance": 20000, "stage3_prefetch_bucket_size": 3000})",
      run.precision, members, "}");
}

void expect_planned_peak(const RunResult& result) {
  for (std::size_t rank = 0; rank < result.memory.size(); ++rank)
    EXPECT_EQ(result.memory[rank].peak, result.estimates[rank].total());
}

std::int64_t activations(const RunResult& result) {
  return result.estimates[0][Tier::device][Category::activations];
}

constexpr const char* kInterval1 = R"(, "pipeline": {"activation_checkpoint_interval": 1})";
constexpr const char* kInterval2 = R"(, "pipeline": {"activation_checkpoint_interval": 2})";
constexpr const char* kTwoGroups = R"(, "activation_checkpointing": {"number_checkpoints": 2})";

TEST(Recomputation, ChangesNoBit) {
  for (const char* precision : {"", R"(, "bf16": {"enabled": true})",
                                R"(, "fp16": {"enabled": true, "initial_scale_power": 8})"}) {
    for (const bool frozen : {false, true}) {
      for (int stage = 0; stage <= 3; ++stage) {
        if (kSanitized && (stage < 3 || *precision != '\0' || !frozen)) continue;
        const Scenario run{precision, stage, frozen};
        const RunResult plain = run_engine(json_of(run, ""), run_options(run));
        EXPECT_FALSE(plain.steps.back().skipped);
        for (const char* members : {kInterval1, kInterval2, kTwoGroups}) {
          SCOPED_TRACE(testing::Message()
                       << "stage " << stage << (frozen ? ", frozen" : "") << precision << members);
          const RunResult result = run_engine(json_of(run, members), run_options(run));
          EXPECT_TRUE(same_bits(plain, result));
          expect_planned_peak(result);
          EXPECT_LT(activations(result), activations(plain));
        }
      }
    }
  }
}

TEST(Recomputation, ChangesNoBitOfHandWrittenOrders) {
  for (const bool frozen : {false, true}) {
    for (int stage = kSanitized ? 3 : 0; stage <= 3; ++stage) {
      if (kSanitized && frozen) continue;  // the test above has it
      const Scenario run{R"(, "bf16": {"enabled": true})", stage, frozen};
      const RunResult plain = run_engine(json_of(run, ""), run_options(run));
      for (const NamedSchedule& c : hand_written_schedules()) {
        SCOPED_TRACE(testing::Message()
                     << c.name << ", stage " << stage << (frozen ? ", frozen" : ""));
        RunOptions options = run_options(run);
        options.engine.schedule = c.schedule;
        const RunResult result = run_engine(json_of(run, kInterval2), options);
        EXPECT_TRUE(same_bits(plain, result));
        expect_planned_peak(result);
      }
    }
  }
}

/// The calls one by one: what a forward without backward kept is gone with the next.
TEST(Recomputation, GoesByTheCallsAsWell) {
  const Scenario run{"", 3, false};
  RunOptions options = run_options(run);
  const RunResult plain = run_engine(json_of(run, ""), options);
  options.body = [](Engine& engine, Module&, int rank) {
    for (int step = 0; step < 2; ++step) {
      std::vector<TokenBatch> batches;
      std::vector<MicroBatch> views;
      for (int m = 0; m < kAccumulation; ++m)
        batches.push_back(nano_batch({rank, step, m}, 2, kAccumulation, 2));
      for (const TokenBatch& batch : batches) views.push_back(batch.view());
      for (const MicroBatch& view : views) {
        engine.forward(view);
        engine.backward();
        engine.step();
      }
    }
  };
  const RunResult result = run_engine(json_of(run, kInterval2), options);
  EXPECT_TRUE(same_state(plain.state, result.state));
  expect_planned_peak(result);
}

}  // namespace
}  // namespace zero3d::test
