// A partition by time: slow blocks are alone, all ranks have one list, and a run by that list is
// the same; what cannot be measured is refused.
#include "zero3d/engine/pipeline/measured_partition.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "../api.h"
#include "pipelines.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/tests/support/log_capture.h"

namespace zero3d::test {
namespace {

/// Passes a number on; forward takes as long as it says.
class SlowBlock final : public Block {
 public:
  SlowBlock(int index, bool last, std::chrono::milliseconds time)
      : index_(index), last_(last), time_(time) {}
  std::string name() const override { return concat("slow ", index_); }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = concat("w", index_);
    spec.shape = Shape{8};
    spec.initial = constant_values(1);
    return {spec};
  }
  Values forward(BlockContext& context, Values, Saved&) override {
    context.stream().launch("sleep", {}, [time = time_] { std::this_thread::sleep_for(time); });
    return value(context, last_ ? 2 : 1);
  }
  Values backward_inputs(BlockContext& context, Values, Saved&) override {
    kernels::fill(context.stream(), context.write_gradient(0), 1.0f);
    return context.wants_input_gradient() ? value(context, 1) : Values(index_ == 0 ? 2 : 1);
  }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  static Values value(BlockContext& context, std::int64_t elements) {
    Values values;
    values.push_back(context.allocate(DType::f32, Shape{elements}));
    kernels::fill(context.stream(), values[0], 1.0f);
    return values;
  }

  int index_;
  bool last_;
  std::chrono::milliseconds time_;
};

class SlowModule final : public Module {
 public:
  explicit SlowModule(const std::vector<int>& milliseconds) {
    for (const int time : milliseconds) {
      const auto index = static_cast<int>(blocks_.size());
      blocks_.push_back(std::make_unique<SlowBlock>(
          index, blocks_.size() + 1 == milliseconds.size(), std::chrono::milliseconds(time)));
    }
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

RunOptions slow_options(const PipelineRun& run, const std::vector<int>& milliseconds) {
  RunOptions options = options_of(run, deep_nano(true), 1);
  options.make_module = [milliseconds](int) { return std::make_unique<SlowModule>(milliseconds); };
  options.engine.sequence_length = kNanoSequence;
  return options;
}

/// Thirty milliseconds beside none: no machine is so busy that they change places.
TEST(MeasuredPartition, ASlowBlockIsAlone) {
  for (const auto& [times, list] : {std::pair(std::vector<int>{30, 0, 0, 0}, "1,3"),
                                    std::pair(std::vector<int>{0, 0, 0, 30}, "3,1")}) {
    PipelineRun run{.pp = 2, .dp = 1, .accumulation = 1};
    run.partition = "time";
    RunOptions options = slow_options(run, times);
    std::vector<std::vector<int>> bounds(2);
    options.after = [&](Engine& engine, int rank) {
      bounds[static_cast<std::size_t>(rank)] = engine.model().plan().pipeline.bounds;
    };
    const LogCapture log;
    const RunResult measured = run_engine(run.settings(), options);
    EXPECT_EQ(bounds[0], bounds[1]);
    EXPECT_EQ(describe(given_partition(bounds[0])), list);
    EXPECT_EQ(log.with(concat("--partition ", list, " has it again")).size(), 1u);
    run.partition = list;
    EXPECT_TRUE(same_bits(measured, run_engine(run.settings(), slow_options(run, times))));
  }
}

/// Of every family each block runs alone on zeros; nothing of it stays in memory or in the numbers.
TEST(MeasuredPartition, TrainsAsItsListWould) {
  for (const ModelConfig& model : nano_families()) {
    PipelineRun run{.pp = 2, .dp = 1, .stage = 1, .accumulation = 2};
    run.partition = "time";
    run.top = R"("bf16": {"enabled": true}, )";
    RunOptions options = options_of(run, model, 1);
    options.engine.sequence_length = kNanoSequence;
    std::string list;
    options.after = [&](Engine& engine, int rank) {
      if (rank == 0) list = describe(given_partition(engine.model().plan().pipeline.bounds));
    };
    const RunResult measured = run_engine(run.settings(), options);
    run.partition = list;
    SCOPED_TRACE(run.text());
    EXPECT_TRUE(same_bits(run_pipeline(run, model, 1), measured));
  }
}

TEST(MeasuredPartition, SaysWhatItNeeds) {
  PipelineRun run{.pp = 2, .dp = 1};
  run.partition = "time";
  const auto refused = [](const std::function<void()>& call, const char* part) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused([&] { run_pipeline(run, deep_nano(true, 2)); }, "EngineOptions::sequence_length");
  RunOptions planned = slow_options(run, {0, 0, 0});
  planned.engine.plan_only = true;
  refused([&] { run_engine(run.settings(), planned); }, "a dry run measures none");
  refused([&] { run_engine(run.settings(), slow_options(run, {0})); },
          "1 blocks, and the pipeline 2");
}

TEST(MeasuredPartition, EvensTimes) {
  const std::vector<PartitionBlock> blocks = {{"a", 1, 5}, {"b", 1, 5}, {"c", 9, 5}, {"d", 1, 15}};
  const PartitionChoice time = parse_partition("time");
  EXPECT_EQ(describe(time), "time");
  EXPECT_EQ(partition_blocks(time, blocks, 2), (std::vector<int>{0, 3, 4}));
  EXPECT_EQ(describe(given_partition({0, 3, 4})), "3,1");
  expect_error([&] { partition_blocks(time, {{"a", 1}, {"b", 1}}, 2); }, "none were measured");
}

}  // namespace
}  // namespace zero3d::test
