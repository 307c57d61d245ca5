// What ZeRO's stages cost, one table for each subcommand:
//   stages       the step of GPT-2 124M at stages 1 to 3 beside stage 0, two ranks of one thread
//   network      on an artificial network, stage 3 with and without prefetch beside stage 0
//   planning     the plans of 1,000 blocks on 1,024 ranks
//   mesh         the plans of all 512 ranks of GPT-3 175B on tp 8 x pp 16 x dp 4
//   bookkeeping  a model of blocks too small to compute: what the engine itself costs
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "trainer.h"
#include "zero3d/core/output_file.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/engine/memory_fit.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/fetch_plan.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/models/build.h"
#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/parallel/comm/planned_world.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::bench {
namespace {

struct Options {
  std::int64_t batch = 4;
  std::int64_t sequence = 256;
  int ranks = 2;
  int rounds = 6;
  std::vector<int> stages = {1, 2, 3};
  double gather_share = 0.9;  ///< A block's gather, of its forward's time.
  std::string trace;          ///< Where the traced steps go, as FILE.0 and so on.
};

double wanted_ratio(int stage, std::int64_t tokens) {
  if (stage == 3 && tokens < 512) return 1.15;
  return stage == 1 ? 1.0 : stage == 2 ? 1.01 : 1.03;
}

void compare_stages(const Options& options) {
  const std::int64_t tokens = options.batch * options.sequence;
  std::printf("GPT-2 124M fp32, %d ranks x 1 thread, %lld tokens a rank, dropout 0.1\n",
              options.ranks, static_cast<long long>(tokens));
  for (const int stage : options.stages) {
    run_ranks(options.ranks, [&](Communicator& world) {
      const auto trainer = [&](int which) {
        return std::make_unique<Trainer>(
            TrainerOptions{gpt2_config(0.1), ds_config(options.batch, "fp32", which),
                           options.sequence, 1},
            world.split(0, world.rank()));
      };
      const auto base = trainer(0), other = trainer(stage);
      const auto times =
          in_turns(options.rounds, {[&] { return base->step(); }, [&] { return other->step(); }});
      if (world.rank() != 0) return;
      std::printf("stage %d %.3f s, stage 0 %.3f s; ratio %s (wanted %.2f)\n", stage,
                  median(times[1]), median(times[0]), ratio_text(times[1], times[0]).c_str(),
                  wanted_ratio(stage, tokens));
      std::fflush(stdout);
    });
  }
}

/// Twelve blocks as GPT-2's between ends of few parameters, whose gathers nothing could hide.
ModelConfig network_model() {
  ModelConfig model = gpt2_config(0.0);
  model.vocab_size = 1024;
  model.max_positions = 256;
  return model;
}

constexpr const char* kNoReuse =
    R"("stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0, "overlap_comm": true)";

std::string network_config(const Options& options, int stage, bool prefetch) {
  return ds_config(
      options.batch, "fp32", stage,
      concat(kNoReuse, R"(, "stage3_prefetch_bucket_size": )", prefetch ? 20'000'000 : 0));
}

/// Seconds of one block's forward, from a trace of a step without a network.
double block_seconds(const Options& options, Communicator& world) {
  Trainer trainer({network_model(), network_config(options, 0, true), options.sequence, 1},
                  world.split(0, world.rank()));
  trainer.step();
  world.exchange("");
  if (world.rank() == 0) Tracer::enable();
  trainer.step();
  std::vector<double> times;
  for (const Span& span : Tracer::spans()) {
    if (span.stream == "blocks" && span.rank == 0 && span.name.rfind("forward block ", 0) == 0)
      times.push_back(static_cast<double>(span.end_ns - span.begin_ns) * 1e-9);
  }
  world.exchange("");
  if (world.rank() == 0) Tracer::disable();
  world.exchange("");
  return world.rank() == 0 ? median(times) : 0;
}

/// The time within a step in which rank 0's compute stream waits: for gathers before blocks, for
/// reductions after them.
double exposed_seconds(Trainer& trainer, Communicator& world, const std::string& trace) {
  if (world.rank() == 0) Tracer::enable();
  world.exchange("");
  const double step = trainer.step();
  double busy = 0;
  if (world.rank() == 0) {
    for (const Span& span : Tracer::spans()) {
      if (span.stream == "compute" && span.rank == 0)
        busy += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
    }
    if (!trace.empty()) {
      OutputFile file(trace);
      Tracer::write_chrome_trace(file);
    }
    Tracer::disable();
  }
  world.exchange("");
  return step - busy;
}

double shared_value(Communicator& world, double value) {
  return std::stod(world.exchange(std::to_string(value)).front());
}

void compare_on_network(const Options& options) {
  run_ranks(options.ranks, [&](Communicator& world) {
    const double forward = shared_value(world, block_seconds(options, world));
    const ModelConfig model = network_model();
    const double block_bytes =
        4.0 * static_cast<double>(model.hidden_size) *
        static_cast<double>(4 * model.hidden_size + 2 * model.intermediate_size);
    const double sent = block_bytes * (options.ranks - 1) / options.ranks;
    NetworkModel network;
    network.latency = std::chrono::microseconds(50);
    network.bytes_per_second = sent / (options.gather_share * forward);
    if (world.rank() == 0) {
      std::printf(
          "GPT-2 blocks of %s, forward %.1f ms; network of %.0f MB/s: a block's gather "
          "takes %.0f %% of its forward\n",
          format_bytes(static_cast<std::int64_t>(block_bytes)).c_str(), 1e3 * forward,
          network.bytes_per_second * 1e-6, 100 * options.gather_share);
    }
    const auto trainer = [&](int stage, bool prefetch) {
      return std::make_unique<Trainer>(
          TrainerOptions{model, network_config(options, stage, prefetch), options.sequence, 1},
          make_delayed(world.split(0, world.rank()), network));
    };
    const auto base = trainer(0, true), with = trainer(3, true), without = trainer(3, false);
    const auto times =
        in_turns(options.rounds, {[&] { return base->step(); }, [&] { return with->step(); },
                                  [&] { return without->step(); }});
    std::vector<double> exposed;
    for (Trainer* side : {base.get(), with.get(), without.get()}) {
      exposed.push_back(exposed_seconds(
          *side, world, options.trace.empty() ? "" : concat(options.trace, ".", exposed.size())));
    }
    if (world.rank() != 0) return;
    const char* names[] = {"stage 0", "stage 3, prefetch", "stage 3, no prefetch"};
    const char* wishes[] = {"", " (wanted at most 1.10)", " (wanted above 1.10)"};
    for (std::size_t i = 0; i < times.size(); ++i) {
      std::printf("%-21s %.3f s, exposed communication %.3f s; ratio to stage 0 %s%s\n", names[i],
                  median(times[i]), exposed[i], ratio_text(times[i], times[0]).c_str(), wishes[i]);
    }
  });
}

/// `count` blocks that declare what a GPT-2 layer does.
std::vector<std::vector<ParameterSpec>> many_blocks(int count) {
  const std::int64_t width = 768;
  const Shape shapes[] = {
      {width}, {width}, {width, 3 * width}, {3 * width}, {width, width},     {width},
      {width}, {width}, {width, 4 * width}, {4 * width}, {4 * width, width}, {width}};
  std::vector<std::vector<ParameterSpec>> blocks;
  for (int block = 0; block < count; ++block) {
    blocks.emplace_back();
    for (const Shape& shape : shapes) {
      ParameterSpec spec;
      spec.name = concat("transformer.h.", block, ".parameter.", blocks.back().size());
      spec.shape = shape;
      blocks.back().push_back(std::move(spec));
    }
  }
  return blocks;
}

void time_planning(const Options& options) {
  constexpr int kBlocks = 1000, kRanks = 1024;
  const auto blocks = many_blocks(kBlocks);
  const auto timed = [](const auto& work) {
    const std::int64_t begin = now_ns();
    work();
    return static_cast<double>(now_ns() - begin) * 1e-6;
  };
  std::vector<double> layouts, buckets, fetches, totals;
  for (int round = 0; round < std::max(options.rounds, 5); ++round) {
    LayoutOptions layout_options;
    layout_options.shards = kRanks;
    layout_options.persistence = true;
    layout_options.param_persistence_threshold = 100'000;
    FetchOptions fetch;
    fetch.prefetch_elements = 50'000'000;
    fetch.max_live_elements = 1'000'000'000;
    fetch.max_reuse_distance = 1'000'000'000;
    std::unique_ptr<ParamLayout> layout;
    layouts.push_back(
        timed([&] { layout = std::make_unique<ParamLayout>(blocks, layout_options); }));
    const std::vector<Op> ops = plan_step({kBlocks, 0}, 1);
    buckets.push_back(timed([&] { plan_buckets(*layout, ops, {}); }));
    fetches.push_back(timed([&] { plan_fetches(*layout, ops, fetch); }));
    totals.push_back(layouts.back() + buckets.back() + fetches.back());
  }
  std::printf(
      "plans of %d blocks on %d ranks: layout %.1f ms, buckets %.1f ms, fetches %.1f ms; "
      "all %.1f ms (wanted below 50)\n",
      kBlocks, kRanks, median(layouts), median(buckets), median(fetches), median(totals));
}

/// Topology, groups, layouts, operations and gathers of every rank, from metadata alone.
void time_mesh() {
  constexpr GridDegrees kDegrees{.dp = 4, .tp = 8, .pp = 16};
  ModelConfig model = gpt2_config(0.0);
  model.hidden_size = 12288;
  model.layers = 96;
  model.heads = model.kv_heads = 96;
  model.head_dim = 128;
  model.intermediate_size = 4 * model.hidden_size;
  model.max_positions = 2048;
  const std::int64_t begin = now_ns();
  const std::unique_ptr<Module> module = build_model(model);
  TrainSettings settings = load_settings(ds_config(1, "bf16", 3), kDegrees.dp);
  settings.accumulation = 2 * kDegrees.pp;
  settings.tp = kDegrees.tp;
  settings.pp = kDegrees.pp;
  const OptimizerSetup setup(settings.optimizer, settings.schedule, {});
  const auto blocks = declared_parameters(*module, {});
  const Topology topology(kDegrees.dp * kDegrees.tp * kDegrees.pp, kDegrees);
  PlanOptions options;
  options.block_names = names_of_blocks(*module);
  double groups = 0, plans = 0, gathers = 0;
  std::size_t operations = 0, units = 0, fetches = 0;
  std::int64_t parameters = 0;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    const std::int64_t start = now_ns();
    const std::unique_ptr<Communicator> world = make_planned_world(topology, rank);
    const Mesh mesh(*world, kDegrees);
    const std::int64_t meshed = now_ns();
    const ZeroPlan plan = plan_zero(settings, setup, blocks, mesh, options);
    const std::int64_t planned = now_ns();
    const PassPlans passes = plan_passes(plan, plan.memory.total(), TrackingResource::kUnlimited);
    groups += static_cast<double>(meshed - start) * 1e-9;
    plans += static_cast<double>(planned - meshed) * 1e-9;
    gathers += static_cast<double>(now_ns() - planned) * 1e-9;
    operations += plan.training.size();
    units += static_cast<std::size_t>(plan.layout.unit_count());
    fetches += passes.training.gathers.size();
    parameters = plan.model_layout().numel();
  }
  const double total = static_cast<double>(now_ns() - begin) * 1e-9;
  std::printf(
      "%s parameters on %d ranks, %s: groups %.2f s, layouts and operations %.2f s, gathers "
      "%.2f s; all %.2f s (wanted below 2)\n",
      format_count(parameters).c_str(), topology.world_size(), topology.factors().c_str(), groups,
      plans, gathers, total);
  std::printf("built: %zu units, %zu operations, %zu gathers of a step\n", units, operations,
              fetches);
}

/// Every kernel of the model is far below a microsecond of arithmetic, so that a step is launches,
/// waits, views and reductions.
void time_bookkeeping(const Options& options) {
  constexpr std::int64_t kLayers = 48, kMicroBatches = 4;
  ModelConfig model = gpt2_config(0.0);
  model.layers = kLayers;
  model.vocab_size = 16;
  model.hidden_size = 16;
  model.heads = model.kv_heads = 1;
  model.head_dim = 16;
  model.intermediate_size = 16;
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(options.ranks, [&](Communicator& world) {
      const std::string config = concat(
          R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )", kMicroBatches,
          R"(, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": )",
          stage, R"(, "reduce_bucket_size": 10000, )", kNoReuse, "}}");
      Trainer trainer({model, config, 4, 1}, world.split(0, world.rank()));
      std::vector<double> steps, tasks, communication;
      for (int round = 0; round <= options.rounds; ++round) {
        const double seconds = trainer.step();
        if (round > 0) steps.push_back(seconds);
      }
      world.exchange("");
      if (world.rank() == 0) Tracer::enable();
      world.exchange("");
      trainer.step();
      world.exchange("");
      if (world.rank() != 0) return;
      double compute = 0;
      std::int64_t launches = 0;
      for (const Span& span : Tracer::spans()) {
        if (span.stream != "compute" || span.rank != 0) continue;
        compute += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
        ++launches;
      }
      Tracer::disable();
      const double per = 1e6 / static_cast<double>((kLayers + 2) * kMicroBatches);
      std::printf(
          "stage %d: step %.1f us a block and micro-batch, of which tasks %.1f us in %.1f "
          "launches; the rest %.1f us (wanted 100)\n",
          stage, per * median(steps), per * compute, per * 1e-6 * static_cast<double>(launches),
          per * (median(steps) - compute));
      std::fflush(stdout);
    });
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("What ZeRO's stages cost");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--batch", options.batch, "Samples of a rank")->capture_default_str();
  app.add_option("--sequence", options.sequence, "Tokens of a sample")->capture_default_str();
  app.add_option("--ranks", options.ranks)->capture_default_str();
  app.add_option("--rounds", options.rounds, "Steps of each side")->capture_default_str();
  CLI::App* stages = app.add_subcommand("stages", "Stages 1 to 3 beside stage 0");
  stages->add_option("--stage", options.stages, "Repeatable")->check(CLI::Range(0, 3));
  CLI::App* network = app.add_subcommand("network", "Prefetch on an artificial network");
  network->add_option("--gather-share", options.gather_share)->capture_default_str();
  network->add_option("--trace", options.trace,
                      "Write a Chrome trace of a step of each side to FILE.0, FILE.1, FILE.2");
  CLI::App* planning = app.add_subcommand("planning", "Time of the plans");
  CLI::App* mesh = app.add_subcommand("mesh", "Time of the plans of 512 ranks");
  CLI::App* bookkeeping = app.add_subcommand("bookkeeping", "Cost of the engine itself");
  CLI11_PARSE(app, argc, argv);
  if (stages->parsed()) compare_stages(options);
  if (network->parsed()) compare_on_network(options);
  if (planning->parsed()) time_planning(options);
  if (mesh->parsed()) time_mesh();
  if (bookkeeping->parsed()) time_bookkeeping(options);
  return 0;
}

}  // namespace
}  // namespace zero3d::bench

int main(int argc, char** argv) {
  try {
    return zero3d::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
