// zero3d train: opens and checks everything a run needs, then runs the ranks, as threads of this
// process or as MPI processes.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "command.h"
#include "config_options.h"
#include "train_options.h"
#include "train_run.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/config/trainable.h"
#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/parallel/comm/mpi_communicator.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::tools {
namespace {

constexpr std::int64_t kDefaultSequence = 1024;

void add_options(CLI::App& command, TrainRequest& request) {
  command.add_option("--config", request.config, "ds_config file")->required();
  command
      .add_option("--model", request.model,
                  "Hugging Face model folder, or a built-in name such as gpt2 or llama-tiny")
      ->required();
  command.add_flag("--from-scratch", request.from_scratch,
                   "Take only the shape of the model folder and draw the weights");
  command.add_option("--data", request.data, "Training data, one or more files")->required();
  command
      .add_option("--data-format", request.data_format,
                  "What the files hold: text is bytes as tokens")
      ->check(CLI::IsMember({"auto", "text", "u16", "llmc", "megatron"}))
      ->capture_default_str();
  command.add_option("--order", request.order, "Order of the samples")
      ->check(CLI::IsMember({"sequential", "shuffled"}))
      ->capture_default_str();
  command
      .add_option("--seq-len", request.sequence_length,
                  "Tokens of a sample; default: what the model takes, at most 1024")
      ->check(CLI::PositiveNumber);
  command.add_option("--steps", request.steps, "Optimizer steps")
      ->required()
      ->check(CLI::PositiveNumber);
  command
      .add_option("--ranks", request.ranks,
                  "Ranks, as threads of this process (under mpirun the launcher decides)")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--threads", request.threads,
                  "Threads of each rank; default: the machine's cores over the ranks")
      ->check(CLI::PositiveNumber);
  command.add_option("--seed", request.seed, "Of initial weights, dropout, shuffling and sampling")
      ->capture_default_str();
  command.add_option("--freeze", request.freeze,
                     "Freeze parameters whose name this regular expression finds; repeatable");
  command.add_option("--no-decay", request.no_decay, "No weight decay for these names; repeatable");
  command.add_option("--metrics", request.metrics, "Write a JSON line for each step to this file");
  command.add_option("--export", request.export_folder,
                     "Write the trained model as a Hugging Face folder");
  command.add_option("--eval-data", request.eval_data,
                     "Evaluation data, one or more files in the format of --data");
  command.add_option("--eval-interval", request.eval_interval,
                     "Evaluate every so many steps; default: at the end");
  command.add_option("--generate", request.generate,
                     "Sample a continuation of this text from the trained model of bytes");
  command.add_option("--generate-tokens", request.generate_tokens, "Tokens to sample")
      ->capture_default_str();
  command
      .add_option("--temperature", request.temperature,
                  "Of the sampling; 0 takes the most likely token")
      ->capture_default_str();
  command.add_option("--trace", request.trace,
                     "Write a Chrome trace of all streams of all ranks (open in ui.perfetto.dev)");
  command.add_option("--device-memory", request.device_memory,
                     "Budget of each rank's device, such as 512MiB");
  command.add_option("--log-level", request.log_level, "debug, info, warning, error or off")
      ->capture_default_str();
  command.add_flag("--allow-unsupported", request.allow_unsupported,
                   "Train although the configuration asks for what zero3d lacks");
  command.add_flag(
      "--reduce-each-micro-batch", request.reduce_each_micro_batch,
      "Debug: ZeRO stages 0 and 1 sum gradients over ranks every micro-batch, as 2 and 3 do");
  add_loading_options(command, request.loading);
}

void require_patterns(const char* option, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    try {
      const std::regex compiled(pattern);
    } catch (const std::regex_error& error) {
      throw_invalid(concat(option, " '", pattern, "' is no regular expression: ", error.what()));
    }
  }
}

/// A folder, or a built-in shape whose weights are drawn.
void open_model(TrainPlan& plan) {
  const TrainRequest& request = plan.request;
  const bool looks_like_path = request.model.find('/') != std::string::npos;
  if (looks_like_path || std::filesystem::exists(request.model)) {
    plan.model = read_model_config(request.model);
    if (!request.from_scratch) plan.weights_folder = request.model;
  } else {
    plan.model = built_in_model_config(request.model);
  }
}

std::unique_ptr<Dataset> open_data(const TrainPlan& plan, const std::vector<std::string>& paths) {
  return std::make_unique<Dataset>(TokenFile(paths, parse_token_format(plan.request.data_format)),
                                   plan.sequence_length, plan.model.vocab_size);
}

void open_config(TrainPlan& plan, int ranks) {
  LoadOptions options = plan.request.loading.resolved();
  options.ranks = ranks;
  options.autos.steps = plan.request.steps;
  options.autos.steps_must_match = false;
  options.autos.hidden_size = plan.model.hidden_size;
  plan.loaded = load_config_file(plan.request.config, options);
  plan.loaded.require_ok();
}

/// Warnings once, not from every rank; then whatever stops a training run.
void check_config(const TrainPlan& plan, bool leads) {
  const TrainCheck check = check_trainable(plan.loaded, {plan.request.allow_unsupported});
  if (leads) {
    for (const ConfigMessage& warning : plan.loaded.warnings)
      log_warning(concat(warning.path, ": ", warning.message));
    for (const ConfigMessage& warning : check.warnings)
      log_warning(concat(warning.path, ": ", warning.message));
    if (!check.not_implemented.empty()) log_warning(check.not_implemented);
  }
  check.require_ok();
}

void write_resolved_config(const TrainPlan& plan) {
  if (plan.request.metrics.empty()) return;
  const std::string path = plan.request.metrics + ".ds_config.json";
  std::ofstream out(path);
  out << resolved_json(plan.loaded.config).dump(2) << "\n";
  if (!out.flush()) throw IoError(path, errno, "cannot write the resolved configuration");
}

TrainPlan make_plan(const TrainRequest& request, int ranks, bool leads) {
  TrainPlan plan;
  plan.request = request;
  require_patterns("--freeze", request.freeze);
  require_patterns("--no-decay", request.no_decay);
  if (!request.device_memory.empty()) plan.device_memory = parse_bytes(request.device_memory);
  open_model(plan);
  open_config(plan, ranks);
  check_config(plan, leads);
  const std::int64_t longest =
      plan.model.family == ModelConfig::Family::gpt2 ? plan.model.max_positions : INT64_MAX;
  plan.sequence_length = request.sequence_length > 0
                             ? request.sequence_length
                             : std::min(plan.model.max_positions, kDefaultSequence);
  if (plan.sequence_length > longest) {
    throw_invalid(concat("--seq-len ", plan.sequence_length, " is longer than the ", longest,
                         " positions of the model"));
  }
  plan.data = open_data(plan, request.data);
  if (!request.eval_data.empty()) plan.eval_data = open_data(plan, request.eval_data);
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  plan.threads = request.threads > 0 ? request.threads : std::max(1, cores / ranks);
  if (leads) write_resolved_config(plan);
  return plan;
}

void run_under_mpi(const TrainRequest& request) {
  MpiSession session;
  const std::unique_ptr<Communicator> world = with_default_checks(make_mpi_world());
  try {
    const TrainPlan plan = make_plan(request, world->size(), world->rank() == 0);
    train_rank(plan, *world);
  } catch (const std::exception& error) {
    world->abort(error.what());
    throw;
  }
}

void run_as_threads(const TrainRequest& request) {
  const TrainPlan plan = make_plan(request, request.ranks, true);
  run_ranks(request.ranks, [&](Communicator& world) { train_rank(plan, world); });
}

void train(const TrainRequest& request) {
  set_log_level(parse_log_level(request.log_level));
  if (!request.trace.empty()) Tracer::enable();
  if (launched_by_mpi()) {
    run_under_mpi(request);
  } else {
    run_as_threads(request);
  }
  if (request.trace.empty()) return;
  Tracer::write_chrome_trace(request.trace);
  std::printf("trace     %s\n", request.trace.c_str());
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a ds_config says");
  auto request = std::make_shared<TrainRequest>();
  add_options(*command, *request);
  command->callback([request] { train(*request); });
}

}  // namespace zero3d::tools
