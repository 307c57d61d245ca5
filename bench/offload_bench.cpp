// What it costs to keep state off the device, one table for each subcommand:
//   step     the step of GPT-2 124M with state in host memory or on a drive beside without
//   hidden   how much of the copies is hidden behind computation, both of a set time
//   largest  the largest GPT-2-shaped model for a budget of device memory, by what is offloaded
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "timed_device.h"
#include "trainer.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/models/build.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::bench {
namespace {

struct Options {
  std::int64_t batch = 4;
  std::int64_t sequence = 256;
  int threads = 2;
  int rounds = 6;
  int stage = 2;
  std::string dtype = "fp32";
  std::string path;  ///< A folder on a drive.
  bool parameters = false;
  std::int64_t tile = 4 << 20;
  std::string device_memory = "1GiB";
};

std::string offload_keys(const Options& options, const std::string& device, bool parameters) {
  const std::string place = device == "nvme"
                                ? concat(R"("device": "nvme", "nvme_path": ")", options.path, "\"")
                                : concat(R"("device": ")", device, "\"");
  std::string keys = concat(R"("offload_optimizer": {)", place,
                            R"(, "pipeline_read": true, "pipeline_write": true})");
  if (parameters) keys += concat(R"(, "offload_param": {)", place, "}");
  if (device == "nvme") keys += concat(R"(, "sub_group_size": )", options.tile);
  return keys;
}

void compare_steps(const Options& options) {
  std::printf("GPT-2 124M %s, %lld x %lld tokens, %d threads, stage %d\n", options.dtype.c_str(),
              static_cast<long long>(options.batch), static_cast<long long>(options.sequence),
              options.threads, options.stage);
  const auto trainer = [&](const std::string& keys) {
    return std::make_unique<Trainer>(
        TrainerOptions{gpt2_config(0), ds_config(options.batch, options.dtype, options.stage, keys),
                       options.sequence, options.threads},
        make_self_communicator());
  };
  for (const std::string& device : {std::string("cpu"), std::string("nvme")}) {
    if (device == "nvme" && options.path.empty()) continue;
    const std::unique_ptr<Trainer> here = trainer("");
    const std::unique_ptr<Trainer> away =
        trainer(offload_keys(options, device, options.parameters));
    const auto times =
        in_turns(options.rounds, {[&] { return away->step(); }, [&] { return here->step(); }});
    const OffloadUse use = away->engine().last_step().offload.value();
    std::printf("%-4s  %.3f s, without %.3f s; ratio %s; out %s, in %s, read %s, written %s\n",
                device.c_str(), median(times[0]), median(times[1]),
                ratio_text(times[0], times[1]).c_str(), format_bytes(use.copied_out_bytes).c_str(),
                format_bytes(use.copied_in_bytes).c_str(), format_bytes(use.read_bytes).c_str(),
                format_bytes(use.written_bytes).c_str());
    std::fflush(stdout);
  }
}

/// A chain of blocks of one parameter each, whose forward sleeps once, and whose backward twice.
class SleepingBlock final : public Block {
 public:
  SleepingBlock(int index, int last, std::int64_t elements, double seconds)
      : index_(index), last_(last), elements_(elements), seconds_(seconds) {}

  std::string name() const override { return concat("sleep.", index_); }
  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = concat("sleep.", index_, ".weight");
    spec.shape = Shape{elements_};
    spec.initial = constant_values(1.0F);
    return {spec};
  }
  Values forward(BlockContext& context, Values, Saved&) override {
    sleep(context.stream(), seconds_);
    Values out;
    const Shape shape = index_ == last_ ? Shape{2} : Shape{1};
    out.push_back(context.allocate(DType::f32, shape));
    const View view = out.back();
    context.stream().launch("ones", {writes(view)}, [view] {
      for (std::int64_t i = 0; i < view.numel(); ++i) view.as<float>()[i] = 1;
    });
    return out;
  }
  Values backward_inputs(BlockContext& context, Values, Saved&) override {
    sleep(context.stream(), 2 * seconds_);
    context.stream().device().fill_zero(context.stream(), context.write_gradient(0));
    Values out;
    const std::size_t inputs = index_ == 0 ? 2 : 1;
    for (std::size_t i = 0; i < inputs; ++i) {
      out.emplace_back();
      if (index_ > 0) {
        out.back() = context.allocate(DType::f32, Shape{1});
        context.stream().device().fill_zero(context.stream(), out.back());
      }
    }
    return out;
  }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  static void sleep(Stream& stream, double seconds) {
    stream.host_task("work", {}, [seconds] {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    });
  }
  const int index_, last_;
  const std::int64_t elements_;
  const double seconds_;
};

class SleepingModule final : public Module {
 public:
  SleepingModule(int blocks, std::int64_t elements, double seconds) {
    for (int i = 0; i < blocks; ++i)
      blocks_.push_back(std::make_unique<SleepingBlock>(i, blocks - 1, elements, seconds));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

constexpr int kBlocks = 12;
constexpr std::int64_t kElements = 1 << 18;
constexpr int kAccumulation = 4;
constexpr double kForward = 0.004;  ///< Seconds of a block.

struct SleepingRun {
  double seconds = 0;      ///< Median of steps.
  std::int64_t bytes = 0;  ///< Copied in a step.
};

SleepingRun run_sleeping(const Options& options, double rate) {
  const std::unique_ptr<Communicator> alone = make_self_communicator();
  const Mesh mesh(*alone);
  const SleepingModule module(kBlocks, kElements, kForward);
  CpuDeviceOptions cpu;
  cpu.threads = 1;
  const std::unique_ptr<Device> device = make_timed_device(make_cpu_device(cpu), rate);
  const std::string zero =
      concat(R"("stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0, )",
             R"("stage3_prefetch_bucket_size": )", 2 * kElements, R"(, "reduce_bucket_size": )",
             kElements, ", ", offload_keys(options, "cpu", true));
  const std::string config = ds_config(1, "fp32", 3, zero);
  TrainSettings settings = load_settings(
      concat(R"({"gradient_accumulation_steps": )", kAccumulation, ", ", config.substr(1)), 1);
  Engine engine(settings, module, mesh, *device, {});
  const std::vector<std::int32_t> token(1, 0);
  const ConstView view(reinterpret_cast<const std::byte*>(token.data()), DType::i32, Shape{1, 1});
  const std::vector<MicroBatch> batches(kAccumulation, MicroBatch{view, view});
  std::vector<double> times;
  for (int step = 0; step <= options.rounds; ++step) {
    const StepResult result = engine.train_batch(batches);
    if (step > 0) times.push_back(result.seconds);
  }
  const OffloadUse use = engine.last_step().offload.value();
  return {median(times), use.copied_in_bytes + use.copied_out_bytes};
}

void measure_hidden(const Options& options) {
  const SleepingRun free = run_sleeping(options, 1e15);
  const double compute = 3 * kForward * kBlocks * kAccumulation;
  std::printf(
      "%d blocks that compute %.0f ms forward and twice that backward, %d micro-batches a step,\n"
      "parameters and state in host memory; without a link %.3f s a step\n"
      "copy/compute  copies  a step  exposed  hidden\n",
      kBlocks, kForward * 1e3, kAccumulation, free.seconds);
  for (const double ratio : {0.25, 0.5, 0.9}) {
    const double copies = ratio * compute;
    const SleepingRun timed = run_sleeping(options, static_cast<double>(free.bytes) / copies);
    const double exposed = timed.seconds - free.seconds;
    std::printf("%12.2f %6.3f s %6.3f s %6.3f s %6.1f %% (wanted 90)\n", ratio, copies,
                timed.seconds, exposed, 100 * (1 - exposed / copies));
    std::fflush(stdout);
  }
}

/// Of GPT-2's shape, `layers` layers of a width that grows with them.
ModelConfig shape_of(int layers) {
  ModelConfig model = gpt2_config(0);
  model.layers = layers;
  model.heads = model.kv_heads = std::max(1, layers);
  model.head_dim = 64;
  model.hidden_size = std::int64_t{64} * model.heads;
  model.intermediate_size = 4 * model.hidden_size;
  return model;
}

bool fits(const Options& options, const std::string& config, int layers, std::int64_t& elements) {
  const std::unique_ptr<Communicator> alone = make_self_communicator();
  const Mesh mesh(*alone);
  const std::unique_ptr<Module> module = build_model(shape_of(layers));
  const std::unique_ptr<Device> device = make_cpu_device({});
  EngineOptions engine;
  engine.plan_only = true;
  engine.sequence_length = options.sequence;
  const Engine plan(load_settings(config, 1), *module, mesh, *device, engine);
  elements = 0;
  for (const ParameterSpec& spec : list_parameters(*module)) elements += spec.shape.numel();
  return plan.memory_estimate(options.batch, options.sequence).total() <=
         parse_bytes(options.device_memory);
}

void find_largest(const Options& options) {
  std::printf("device memory %s, %s, %lld x %lld tokens, one rank\n", options.device_memory.c_str(),
              options.dtype.c_str(), static_cast<long long>(options.batch),
              static_cast<long long>(options.sequence));
  const Options drive = [&] {
    Options with_path = options;
    if (with_path.path.empty()) with_path.path = "/nvme";
    return with_path;
  }();
  const std::string lean =
      R"("stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0, "reduce_bucket_size": 1, "overlap_comm": false, )";
  struct Row {
    const char* name;
    int stage;
    std::string keys;
    bool recompute = false;
  };
  const Row rows[] = {{"nothing offloaded", 0, ""},
                      {"stage 3", 3, ""},
                      {"+ optimizer on the CPU", 3, lean + offload_keys(options, "cpu", false)},
                      {"+ parameters on the CPU", 3, lean + offload_keys(options, "cpu", true)},
                      {"both on NVMe", 3, lean + offload_keys(drive, "nvme", true)},
                      {"+ recomputation", 3, lean + offload_keys(drive, "nvme", true), true}};
  for (const Row& row : rows) {
    std::string config = ds_config(options.batch, options.dtype, row.stage, row.keys);
    if (row.recompute) config.insert(1, R"("pipeline": {"activation_checkpoint_interval": 1}, )");
    int best = 0;
    std::int64_t largest = 0, elements = 0;
    for (int layers = 1; layers <= 128 && fits(options, config, layers, elements); ++layers)
      best = layers, largest = elements;
    std::printf("%-24s %3d layers of %5d, %6.3f B parameters\n", row.name, best, 64 * best,
                static_cast<double>(largest) * 1e-9);
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("State off the device");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--batch", options.batch, "Samples of a step")->capture_default_str();
  app.add_option("--sequence", options.sequence, "Tokens of a sample")->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--rounds", options.rounds, "Steps of each side")->capture_default_str();
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"fp32", "bf16"}));
  CLI::App* step = app.add_subcommand("step", "Beside the step without offload");
  step->add_option("--stage", options.stage)->check(CLI::Range(1, 3))->capture_default_str();
  step->add_option("--path", options.path, "A folder on a drive: nvme is measured too");
  step->add_flag("--parameters", options.parameters, "Offload parameters as well (stage 3)");
  step->add_option("--tile", options.tile, "sub_group_size with a drive")->capture_default_str();
  CLI::App* hidden = app.add_subcommand("hidden", "Copies behind computation");
  CLI::App* largest = app.add_subcommand("largest", "Models that fit");
  largest->add_option("--device-memory", options.device_memory)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (step->parsed()) compare_steps(options);
  if (hidden->parsed()) measure_hidden(options);
  if (largest->parsed()) find_largest(options);
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
