// The step of GPT-2 124M on the CPU, one table for each subcommand:
//   peer    step time beside PyTorch eager, in turns, and both sides' rates of matrix products
//   gemm    share of matrix products in forward + backward, from a trace, and their rate
//   ranks   2 ranks x 1 thread beside 1 rank x 2 threads on one global batch
//   tensor  2 ranks that share every layer, of 1 thread, beside 1 rank x 2 threads
//   memory  peak of device memory beside the plan
//   recompute  step time and activations with forward computed again beside without
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <thread>

#include "onednn_rate.h"
#include "peer.h"
#include "trainer.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::bench {
namespace {

struct Options {
  std::int64_t batch = 4;
  std::int64_t sequence = 64;
  int threads = 2;
  int rounds = 8;
  std::string dtype = "fp32";
  int interval = 1;
  bool on_host = false;
  bool overlap = false;
  bool split_rows = false;
  double dropout = 0.1;
  std::string python;
  std::string script = ZERO3D_BENCH_DIR "/peers/gpt2_torch.py";

  TrainerOptions trainer() const {
    return {gpt2_config(dropout), ds_config(batch, dtype, 0), sequence, threads, {}};
  }
};

void print_title(const Options& options) {
  std::printf("GPT-2 124M %s, %lld x %lld tokens, %d threads, dropout %g\n", options.dtype.c_str(),
              static_cast<long long>(options.batch), static_cast<long long>(options.sequence),
              options.threads, options.dropout);
}

double wanted_gain(const std::string& dtype, double share) {
  return dtype == "bf16" ? 1.2 : wanted_factor(2.0, 1.15, share);
}

void compare_with_peer(const Options& options) {
  print_title(options);
  Peer peer({options.python, options.script, "--batch", std::to_string(options.batch), "--sequence",
             std::to_string(options.sequence), "--threads", std::to_string(options.threads),
             "--dtype", options.dtype, "--dropout", std::to_string(options.dropout)});
  Trainer ours(options.trainer(), make_self_communicator());
  const auto times =
      in_turns(options.rounds, {[&] { return ours.step(); }, [&] { return peer.ask("step"); }});
  const double peer_rate = peer.ask("matmul");
  const double raw =
      onednn_rate(options.trainer().model, options.batch * options.sequence,
                  options.dtype == "bf16" ? DType::bf16 : DType::f32, options.threads);
  const double share = peer_rate / raw, wanted = wanted_gain(options.dtype, share);
  const double gain = median_ratio(times[1], times[0]);
  std::printf("step      zero3d %.3f s, PyTorch %.3f s; PyTorch / zero3d %s\n", median(times[0]),
              median(times[1]), ratio_text(times[1], times[0]).c_str());
  std::printf("products  PyTorch %.0f GFLOP/s, oneDNN alone %.0f GFLOP/s: %.0f %%\n", peer_rate,
              raw, 100 * share);
  std::printf("wanted    %.2f times: %s\n", wanted, gain >= wanted ? "reached" : "missed");
}

bool is_product(const std::string& name) { return name.rfind("linear ", 0) == 0; }

/// Spans of one rank's compute stream between the first block's forward and its backward's end.
void share_of_products(const Options& options) {
  print_title(options);
  const TrainerOptions trainer_options = options.trainer();
  Trainer trainer(trainer_options, make_self_communicator());
  trainer.step();
  double window = 0, products = 0;
  std::map<std::string, double> others;
  for (int round = 0; round < options.rounds; ++round) {
    Tracer::enable();
    trainer.step();
    const std::vector<Span> spans = Tracer::spans();
    std::int64_t begin = INT64_MAX, end = 0;
    for (const Span& span : spans) {
      if (span.stream != "blocks") continue;
      begin = std::min(begin, span.begin_ns);
      end = std::max(end, span.end_ns);
    }
    for (const Span& span : spans) {
      if (span.stream != "compute" || span.begin_ns < begin || span.end_ns > end) continue;
      const double seconds = static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
      (is_product(span.name) ? products : others[span.name]) += seconds;
    }
    window += static_cast<double>(end - begin) * 1e-9;
  }
  Tracer::disable();
  const double rounds = options.rounds;
  const double flop =
      gpt2_product_flop(trainer_options.model, options.batch * options.sequence) * rounds;
  const double raw =
      onednn_rate(trainer_options.model, options.batch * options.sequence,
                  options.dtype == "bf16" ? DType::bf16 : DType::f32, options.threads);
  std::printf("forward + backward %.3f s, products %.3f s: %.1f %% (wanted 85)\n", window / rounds,
              products / rounds, 100 * products / window);
  std::printf("products in the step %.0f GFLOP/s, oneDNN alone %.0f: %.1f %% (wanted 90)\n",
              flop / products * 1e-9, raw, 100 * flop / products * 1e-9 / raw);
  std::vector<std::pair<double, std::string>> rest;
  for (const auto& [name, seconds] : others) rest.emplace_back(seconds, name);
  std::sort(rest.rbegin(), rest.rend());
  for (const auto& [seconds, name] : rest) {
    if (seconds / rounds >= 1e-4)
      std::printf("  %-32s %7.2f ms\n", name.c_str(), 1e3 * seconds / rounds);
  }
}

/// The two share the batch, or every layer.
void compare_ranks(const Options& options, bool tensor_parallel) {
  print_title(options);
  run_ranks(2, [&](Communicator& world) {
    TrainerOptions two = options.trainer();
    two.threads = 1;
    if (tensor_parallel) {
      two.degrees = {.dp = 1, .tp = 2};
      two.change = [&](TrainSettings& settings) {
        settings.overlap_tp = options.overlap;
        settings.split_rows = options.split_rows;
      };
    } else {
      two.config = ds_config(options.batch / 2, options.dtype, 0);
    }
    TrainerOptions one = options.trainer();
    one.threads = 2;
    Trainer pair(two, world.split(0, world.rank()));
    std::unique_ptr<Trainer> alone;
    if (world.rank() == 0) alone = std::make_unique<Trainer>(one, make_self_communicator());
    const auto times = in_turns(options.rounds, {[&] { return pair.step(); },
                                                 [&] {
                                                   const double seconds =
                                                       alone ? alone->step() : 1.0;
                                                   world.exchange("");
                                                   return seconds;
                                                 }});
    if (world.rank() != 0) return;
    std::printf(
        "step  %s2 ranks x 1 thread %.3f s, 1 rank x 2 threads %.3f s; ratio %s (wanted 1.15)\n",
        tensor_parallel ? "tp 2: " : "", median(times[0]), median(times[1]),
        ratio_text(times[0], times[1]).c_str());
  });
}

void compare_memory(const Options& options) {
  print_title(options);
  for (const int stage : {0, 3}) {
    run_ranks(stage == 0 ? 1 : 2, [&](Communicator& world) {
      TrainerOptions trainer_options = options.trainer();
      trainer_options.config = ds_config(options.batch, options.dtype, stage);
      Trainer trainer(trainer_options, world.split(0, world.rank()));
      const std::int64_t planned =
          trainer.engine().memory_estimate(options.batch, options.sequence).total();
      for (int i = 0; i < 3; ++i) trainer.step();
      const std::int64_t peak = trainer.device().memory().use().peak;
      if (world.rank() != 0) return;
      std::printf("stage %d, %d ranks: planned %s a rank, peak %s: %.3f (wanted 0.9 to 1)\n", stage,
                  world.size(), format_bytes(planned).c_str(), format_bytes(peak).c_str(),
                  static_cast<double>(peak) / static_cast<double>(planned));
    });
  }
}

void compare_recomputation(const Options& options) {
  print_title(options);
  TrainerOptions again = options.trainer();
  again.change = [&](TrainSettings& settings) { settings.offload.activations = options.on_host; };
  again.config.insert(
      1, concat("\"pipeline\": {\"activation_checkpoint_interval\": ", options.interval, "}, "));
  Trainer plain(options.trainer(), make_self_communicator());
  Trainer recomputing(again, make_self_communicator());
  const auto times =
      in_turns(options.rounds, {[&] { return recomputing.step(); }, [&] { return plain.step(); }});
  const auto activations = [&](Trainer& trainer) {
    return trainer.engine().memory_estimate(options.batch,
                                            options.sequence)[Tier::device][Category::activations];
  };
  const auto peak = [](Trainer& trainer) { return trainer.device().memory().use().peak; };
  const std::int64_t saved = activations(plain) - activations(recomputing);
  std::printf(
      "step         kept whole %.3f s, inputs of every %d blocks%s %.3f s; ratio %s (wanted 1.36 "
      "at most)\n",
      median(times[1]), options.interval, options.on_host ? " in host memory" : "",
      median(times[0]), ratio_text(times[0], times[1]).c_str());
  const MemoryEstimate plan = recomputing.engine().memory_estimate(options.batch, options.sequence);
  if (options.on_host)
    std::printf(
        "pinned       planned %s for kept inputs, peak %s\n",
        format_bytes(plan[Tier::pinned][Category::activations]).c_str(),
        format_bytes(
            recomputing.device().memory(Tier::pinned).use().categories[Category::activations].peak)
            .c_str());
  std::printf("activations  planned %s and %s: %s less; peak of the device %s less\n",
              format_bytes(activations(plain)).c_str(),
              format_bytes(activations(recomputing)).c_str(), format_bytes(saved).c_str(),
              format_bytes(peak(plain) - peak(recomputing)).c_str());
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("The training step of GPT-2 124M");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--batch", options.batch, "Samples of a step")->capture_default_str();
  app.add_option("--sequence", options.sequence, "Tokens of a sample")->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--rounds", options.rounds, "Steps of each side")->capture_default_str();
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--dropout", options.dropout)->capture_default_str();
  CLI::App* peer = app.add_subcommand("peer", "Beside PyTorch eager");
  peer->add_option("--python", options.python, "A Python with torch and transformers")->required();
  peer->add_option("--script", options.script)->capture_default_str();
  CLI::App* gemm = app.add_subcommand("gemm", "Share and rate of matrix products");
  CLI::App* ranks = app.add_subcommand("ranks", "2 ranks x 1 thread beside 1 rank x 2 threads");
  CLI::App* tensor = app.add_subcommand("tensor", "tp 2 beside 1 rank x 2 threads");
  tensor->add_flag("--overlap", options.overlap, "tp_overlap_comm");
  tensor->add_flag("--sequence-parallel", options.split_rows, "zero3d.sequence_parallel");
  CLI::App* memory = app.add_subcommand("memory", "Peak beside plan");
  CLI::App* recompute = app.add_subcommand("recompute", "Forward computed again beside kept whole");
  recompute->add_option("--interval", options.interval, "Blocks between kept inputs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  recompute->add_flag("--on-host", options.on_host, "Kept inputs wait in pinned host memory");
  CLI11_PARSE(app, argc, argv);
  if (peer->parsed()) compare_with_peer(options);
  if (gemm->parsed()) share_of_products(options);
  if (ranks->parsed()) compare_ranks(options, false);
  if (tensor->parsed()) compare_ranks(options, true);
  if (memory->parsed()) compare_memory(options);
  if (recompute->parsed()) compare_recomputation(options);
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
