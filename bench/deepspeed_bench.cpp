// Tokens a second of GPT-2 124M fp32 at ZeRO stages 1 to 3 beside DeepSpeed on CPUs (gloo), two
// ranks of one thread each, in turns; and both sides' rates of matrix products.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "onednn_rate.h"
#include "peer.h"
#include "trainer.h"
#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::bench {
namespace {

struct Options {
  std::string python;
  std::string script = ZERO3D_BENCH_DIR "/peers/gpt2_deepspeed.py";
  std::vector<int> stages = {1, 2, 3};
  std::vector<std::int64_t> sequences = {64, 256};
  std::int64_t batch = 4;
  int ranks = 2;
  int rounds = 3;
  double dropout = 0.1;
  std::string offload;  ///< "cpu", "nvme"; empty: the state stays on the device.
  std::string path = "/tmp";
  int timeout = 3600;  ///< Seconds; a peer that swaps to a slow drive takes minutes a step.

  std::vector<std::string> peer_arguments() const {
    if (offload.empty()) return {};
    return {"--offload", offload, "--path", path};
  }
  std::string zero_keys() const {
    if (offload.empty()) return "";
    return concat(R"("offload_optimizer": {"device": ")", offload, R"(", "nvme_path": ")", path,
                  R"(", "pipeline_read": true, "pipeline_write": true})");
  }
};

double wanted(std::int64_t sequence, double share) {
  return sequence < 128 ? wanted_factor(3.0, 1.7, share) : wanted_factor(2.5, 1.4, share);
}

/// Said while one waits: what takes minutes a step is told from what hangs.
double ask_step(Peer& peer) {
  const double seconds = peer.ask("step");
  std::fprintf(stderr, "DeepSpeed: a step in %.2f s\n", seconds);
  return seconds;
}

void compare(const Options& options, int stage, std::int64_t sequence) {
  std::vector<std::string> command = {options.python, options.script,
                                      "--stage",      std::to_string(stage),
                                      "--sequence",   std::to_string(sequence),
                                      "--batch",      std::to_string(options.batch),
                                      "--ranks",      std::to_string(options.ranks),
                                      "--dropout",    std::to_string(options.dropout)};
  for (const std::string& argument : options.peer_arguments()) command.push_back(argument);
  Peer peer(command);
  run_ranks(options.ranks, [&](Communicator& world) {
    world.set_timeout(std::chrono::seconds(options.timeout));
    const bool leads = world.rank() == 0;
    const ModelConfig model = gpt2_config(options.dropout);
    Trainer ours({model, ds_config(options.batch, "fp32", stage, options.zero_keys()), sequence, 1},
                 world.split(0, world.rank()));
    const auto times = in_turns(options.rounds, {[&] { return ours.step(); },
                                                 [&] {
                                                   const double seconds =
                                                       leads ? ask_step(peer) : 1.0;
                                                   world.exchange("");
                                                   return seconds;
                                                 }});
    if (!leads) return;
    const std::int64_t tokens = options.batch * sequence;
    const double peer_rate = peer.ask("matmul");
    const double raw = onednn_rate(model, tokens, DType::f32, 1);
    const double gain = median_ratio(times[1], times[0]), asked = wanted(sequence, peer_rate / raw);
    const double all = static_cast<double>(tokens * options.ranks);
    std::printf(
        "stage %d, %lld x %lld tokens a rank: zero3d %.0f tokens/s, DeepSpeed %.0f: %s times; "
        "products of DeepSpeed at %.0f %% of oneDNN's %.0f GFLOP/s, so wanted %.2f: %s\n",
        stage, static_cast<long long>(options.batch), static_cast<long long>(sequence),
        all / median(times[0]), all / median(times[1]), ratio_text(times[1], times[0]).c_str(),
        100 * peer_rate / raw, raw, asked, gain >= asked ? "reached" : "missed");
    std::fflush(stdout);
  });
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("GPT-2 124M beside DeepSpeed");
  app.add_option("--python", options.python, "A Python with torch, transformers and deepspeed")
      ->required();
  app.add_option("--script", options.script)->capture_default_str();
  app.add_option("--stage", options.stages, "Repeatable")->check(CLI::Range(0, 3));
  app.add_option("--sequence", options.sequences, "Tokens of a sample; repeatable");
  app.add_option("--batch", options.batch, "Samples of a rank")->capture_default_str();
  app.add_option("--ranks", options.ranks)->capture_default_str();
  app.add_option("--rounds", options.rounds, "Steps of each side")->capture_default_str();
  app.add_option("--dropout", options.dropout)->capture_default_str();
  app.add_option("--offload", options.offload, "Where the optimizer's state lies, on both sides")
      ->check(CLI::IsMember({"cpu", "nvme"}));
  app.add_option("--path", options.path, "A folder on a drive, for nvme")->capture_default_str();
  app.add_option("--timeout", options.timeout,
                 "Seconds that a rank waits for a step of the other side")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (const std::int64_t sequence : options.sequences) {
    for (const int stage : options.stages) compare(options, stage, sequence);
  }
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
