// The bubbles of pipelines as they are measured: four stages of blocks that sleep, so that no
// stage computes in another one's bubble however few cores there are. Prints, for each schedule,
// the share of their time that stages wait, beside what the schedule played out says.
//
//   pipeline_bench [--stages 4] [--micro-batches 8] [--milliseconds 10] [--steps 3]
//
// compute: two stages of one thread each that compute GPT-2's layers with a vocabulary of 512,
// dealt to them by measured time. How much the stages' own times differ is a line of its own: what
// it adds to the bubble is no schedule's.
//
//   pipeline_bench [--micro-batches 8] [--steps 3] compute [--layers 12] [--batch 2] [--sequence
//   64]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "trainer.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/engine.h"
#include "zero3d/engine/pipeline/timeline.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::bench {
namespace {

/// Passes a number on; each of forward, input and weight gradients takes `time`.
class SleepBlock final : public Block {
 public:
  SleepBlock(int index, bool last, std::chrono::microseconds time)
      : index_(index), last_(last), time_(time) {}
  std::string name() const override { return concat("sleep ", index_); }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = concat("w", index_);
    spec.shape = Shape{1024};
    spec.initial = constant_values(1);
    spec.gradient_in_weights = true;
    return {spec};
  }
  Values forward(BlockContext& context, Values, Saved&) override {
    sleep(context);
    return value(context, last_ ? 2 : 1);
  }
  Values backward_inputs(BlockContext& context, Values, Saved&) override {
    sleep(context);
    return context.wants_input_gradient() ? value(context, 1) : Values(index_ == 0 ? 2 : 1);
  }
  void backward_weights(BlockContext& context, Saved&) override {
    sleep(context);
    kernels::fill(context.stream(), context.write_gradient(0), 1.0f);
  }

 private:
  static Values value(BlockContext& context, std::int64_t elements) {
    Values values;
    values.push_back(context.allocate(DType::f32, Shape{elements}));
    kernels::fill(context.stream(), values[0], 1.0f);
    return values;
  }
  void sleep(BlockContext& context) const {
    context.stream().launch("sleep", {}, [time = time_] { std::this_thread::sleep_for(time); });
  }

  int index_;
  bool last_;
  std::chrono::microseconds time_;
};

class SleepModule final : public Module {
 public:
  SleepModule(int blocks, std::chrono::microseconds time) {
    for (int i = 0; i < blocks; ++i)
      blocks_.push_back(std::make_unique<SleepBlock>(i, i + 1 == blocks, time));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

struct Options {
  int stages = 4;
  int micro_batches = 8;
  double milliseconds = 10;
  int steps = 3;
  std::int64_t layers = 12;
  std::int64_t batch = 2;
  std::int64_t sequence = 64;
};

/// Seconds of the median step. Two blocks a stage, whatever its chunks.
double step_seconds(const Options& options, PipelineSchedule schedule) {
  TrainSettings settings;
  settings.optimizer.type = "SGD";
  settings.optimizer.params["lr"] = 0.0;
  settings.accumulation = options.micro_batches;
  settings.pp = options.stages;
  settings.pipeline.schedule = schedule;
  settings.pipeline.partition.method = PartitionMethod::uniform;
  std::vector<double> seconds;
  run_ranks(options.stages, [&](Communicator& world) {
    const SleepModule module(
        2 * options.stages,
        std::chrono::microseconds(static_cast<int>(options.milliseconds * 1000)));
    TrainingSession session = initialize(settings, module, world);
    const std::int32_t token = 0;
    const ConstView ids(reinterpret_cast<const std::byte*>(&token), DType::i32, Shape{1, 1});
    const std::vector<MicroBatch> batches(static_cast<std::size_t>(options.micro_batches),
                                          MicroBatch{ids, ids});
    for (int step = 0; step <= options.steps; ++step) {
      const std::int64_t begin = now_ns();
      session->train_batch(batches);
      if (world.rank() == 0 && step > 0)
        seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9);
    }
  });
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void run(const Options& options) {
  std::printf("%d stages, %d micro-batches, blocks of %.1f ms\n", options.stages,
              options.micro_batches, options.milliseconds);
  std::printf("%-12s %9s %9s %11s\n", "schedule", "measured", "planned", "difference");
  using enum PipelineSchedule;
  for (const PipelineSchedule schedule :
       {gpipe, one_forward_one_backward, interleaved, zero_bubble_h1, zero_bubble_v}) {
    const PipelineShape shape = pipeline_shape(schedule, options.stages, 0);
    const auto tasks = plan_pipeline(schedule, shape, options.micro_batches);
    const double planned = play_pipeline(shape, tasks, {}).bubble();
    const double busy = 3 * 2 * options.micro_batches * options.milliseconds * 1e-3;
    const double measured = 1 - busy / step_seconds(options, schedule);
    std::printf("%-12s %8.1f%% %8.1f%% %+10.1f\n", name_of(schedule), 100 * measured, 100 * planned,
                100 * (measured - planned));
  }
}

/// Of one step, from the first block of any stage to the last.
struct Window {
  double seconds = 0;
  std::vector<double> busy;  ///< Of each stage.

  double bubble() const {
    double all = 0;
    for (const double stage : busy) all += stage;
    return 1 - all / (seconds * static_cast<double>(busy.size()));
  }
  /// The largest of the stages' times over the least.
  double imbalance() const {
    const auto [least, most] = std::minmax_element(busy.begin(), busy.end());
    return *most / *least - 1;
  }
};

Window window_of(const std::vector<Span>& spans, int stages) {
  Window window;
  window.busy.resize(static_cast<std::size_t>(stages));
  std::int64_t begin = INT64_MAX, end = 0;
  for (const Span& span : spans) {
    if (span.stream != "blocks") continue;
    begin = std::min(begin, span.begin_ns);
    end = std::max(end, span.end_ns);
    window.busy[static_cast<std::size_t>(span.rank)] +=
        static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  }
  window.seconds = static_cast<double>(end - begin) * 1e-9;
  return window;
}

/// Of the steps, the one with the median bubble.
Window computed_window(const Options& options, PipelineSchedule schedule,
                       const PartitionChoice& partition) {
  constexpr int kStages = 2;
  std::vector<Window> windows;
  run_ranks(kStages, [&](Communicator& world) {
    TrainerOptions trainer_options{gpt2_config(0.0), ds_config(options.batch, "fp32", 0),
                                   options.sequence, 1};
    trainer_options.model.vocab_size = 512;
    trainer_options.model.layers = options.layers;
    trainer_options.degrees = {.dp = 1, .pp = kStages};
    trainer_options.change = [&](TrainSettings& settings) {
      settings.accumulation = options.micro_batches;
      settings.pipeline.schedule = schedule;
      settings.pipeline.partition = partition;
    };
    Trainer trainer(trainer_options, world.split(0, world.rank()));
    trainer.step();
    for (int step = 0; step < options.steps; ++step) {
      if (world.rank() == 0) Tracer::enable();
      trainer.step();
      world.exchange("");
      if (world.rank() == 0) windows.push_back(window_of(Tracer::spans(), kStages));
      world.exchange("");
    }
  });
  Tracer::disable();
  std::sort(windows.begin(), windows.end(),
            [](const Window& a, const Window& b) { return a.bubble() < b.bubble(); });
  return windows[windows.size() / 2];
}

void run_computing(const Options& options) {
  std::printf("2 stages of 1 thread, %d micro-batches of %lld x %lld tokens, %lld layers of 768\n",
              options.micro_batches, static_cast<long long>(options.batch),
              static_cast<long long>(options.sequence), static_cast<long long>(options.layers));
  std::printf("%-12s %9s %9s %11s\n", "schedule", "measured", "planned", "difference");
  using enum PipelineSchedule;
  for (const PipelineSchedule schedule :
       {gpipe, one_forward_one_backward, interleaved, zero_bubble_h1}) {
    const PipelineShape shape = pipeline_shape(schedule, 2, 0);
    const auto tasks = plan_pipeline(schedule, shape, options.micro_batches);
    const double planned = play_pipeline(shape, tasks, {}).bubble();
    const Window window = computed_window(options, schedule, {.method = PartitionMethod::time});
    std::printf("%-12s %8.1f%% %8.1f%% %+10.1f (wanted within 5)\n", name_of(schedule),
                100 * window.bubble(), 100 * planned, 100 * (window.bubble() - planned));
    std::printf("  imbalance: stages compute %.3f and %.3f s, %.1f%% apart (wanted below 3)\n",
                window.busy[0], window.busy[1], 100 * window.imbalance());
  }
}

}  // namespace
}  // namespace zero3d::bench

int main(int argc, char** argv) {
  zero3d::bench::Options options;
  CLI::App app("Bubbles of pipelines, measured");
  app.add_option("--stages", options.stages)->check(CLI::Range(1, 64));
  app.add_option("--micro-batches", options.micro_batches)->check(CLI::Range(1, 1024));
  app.add_option("--milliseconds", options.milliseconds)->check(CLI::Range(0.1, 1000.0));
  app.add_option("--steps", options.steps)->check(CLI::Range(1, 1000));
  CLI::App* compute = app.add_subcommand("compute", "Two stages of GPT-2's layers");
  compute->fallthrough();
  compute->add_option("--layers", options.layers)->check(CLI::Range(2, 96));
  compute->add_option("--batch", options.batch)->check(CLI::Range(1, 64));
  compute->add_option("--sequence", options.sequence)->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  if (compute->parsed())
    zero3d::bench::run_computing(options);
  else
    zero3d::bench::run(options);
  return 0;
}
