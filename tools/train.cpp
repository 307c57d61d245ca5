// zero3d train: its options.
#include <CLI/CLI.hpp>

#include "command.h"
#include "config_options.h"
#include "option_checks.h"
#include "train_launch.h"
#include "train_options.h"

namespace zero3d::tools {
namespace {

constexpr const char* kModelAndData = "Model and data";
constexpr std::uint64_t kLongestSequence = std::uint64_t{1}
                                           << 31;  // as many positions as a model has

constexpr const char* kRun = "Run";
constexpr const char* kParameters = "Parameters, by regular expressions (RE2) found in their names";
constexpr const char* kOutputs = "Outputs";
constexpr const char* kCheckpoints = "Checkpoints";
constexpr const char* kDebugging = "Debugging";

void add_model_and_data(CLI::App& command, TrainRequest& request) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return command.add_option(name, value, help)->group(kModelAndData)->type_name(type);
  };
  add("--config", request.config, "FILE", "ds_config file")->required();
  add("--model", request.model, "DIR|NAME",
      "Hugging Face model folder, or a built-in shape such as gpt2 or llama-tiny")
      ->required();
  command
      .add_flag("--from-scratch", request.from_scratch,
                "Take only the shape of the model folder and draw the weights")
      ->group(kModelAndData);
  add("--data", request.data, "PATH", "Training data, one or more files")->required();
  add("--data-format", request.data_format, "WORD", "What the files hold: text is bytes as tokens")
      ->check(CLI::IsMember({"auto", "text", "u16", "u32", "npy", "llmc", "megatron"}))
      ->capture_default_str();
  add("--order", request.order, "WORD", "Order of the samples")
      ->check(CLI::IsMember({"sequential", "shuffled"}))
      ->capture_default_str();
  add("--seq-len", request.sequence_length, "N",
      "Tokens of a sample; default: what the model takes, at most 1024")
      ->check(whole_number(1, kLongestSequence));
  CLI::Option* eval_data = add("--eval-data", request.eval_data, "PATH",
                               "Evaluation data, one or more files in the format of --data");
  add("--eval-interval", request.eval_interval, "N",
      "Evaluate every so many steps; default: at the end")
      ->needs(eval_data)
      ->check(whole_number(1));
}

void add_run(CLI::App& command, TrainRequest& request) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return command.add_option(name, value, help)->group(kRun)->type_name(type);
  };
  add("--steps", request.steps, "N", "Optimizer steps, from the start of the run")
      ->required()
      ->check(whole_number(1));
  add("--ranks", request.ranks, "N",
      "Ranks, as threads of this process; default: 1. Under mpirun its processes are the ranks")
      ->check(int_number(1, 4096));
  add("--threads", request.threads, "N",
      "Threads of each rank; default: the cores it may use over the ranks")
      ->check(int_number(1, 4096));
  add("--device", request.device, "WORD",
      "What each rank computes on; auto: a GPU in builds with CUDA that may use one, else the CPU")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->capture_default_str();
  command
      .add_flag("--no-bind", request.no_bind,
                "Let the threads of all ranks run on any core, not each rank on its own")
      ->group(kRun);
  add("--device-memory", request.device_memory, "SIZE",
      "Budget of each rank's device, such as 512MiB");
  add("--host-memory", request.host_memory, "SIZE",
      "Budget of each rank's host memory, pinned and pageable together");
  add("--seed", request.seed, "N", "Of initial weights, dropout, shuffling and sampling")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  add("--comm-timeout", request.comm_timeout, "SECONDS",
      "End the run when ranks have waited this long for one of them; a tenth of it is told")
      ->check(real_number(0.001))
      ->capture_default_str();
  add("--io-timeout", request.io_timeout, "SECONDS",
      "End the run when a drive that state is offloaded to has answered nothing for this long")
      ->check(real_number(0.001))
      ->capture_default_str();
  add("--max-skipped-steps", request.max_skipped_steps, "N",
      "End the run after this many skipped steps in a row")
      ->check(int_number(1))
      ->capture_default_str();
  command
      .add_flag("--dry-run", request.dry_run,
                "Print the plan and end: no memory is taken and nothing is written, so that the "
                "model may be larger than this machine")
      ->group(kRun);
  command
      .add_flag("--allow-unsupported", request.allow_unsupported,
                "Train although the configuration asks for what zero3d lacks")
      ->group(kRun);
}

void add_parameters(CLI::App& command, TrainRequest& request) {
  command.add_option("--freeze", request.freeze, "Keep these as they are; repeatable")
      ->group(kParameters)
      ->type_name("REGEX");
  command.add_option("--no-decay", request.no_decay, "No weight decay for these; repeatable")
      ->group(kParameters)
      ->type_name("REGEX");
}

void add_outputs(CLI::App& command, TrainRequest& request) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return command.add_option(name, value, help)->group(kOutputs)->type_name(type);
  };
  add("--metrics", request.metrics, "FILE",
      "A JSON line for each step, and beside a file the resolved configuration in "
      "FILE.ds_config.json");
  add("--export", request.export_folder, "DIR", "The trained model as a Hugging Face folder");
  add("--generate", request.generate, "TEXT",
      "A continuation of this text, from the trained model of bytes");
  add("--generate-tokens", request.generate_tokens, "N", "Tokens to sample")
      ->check(whole_number(0))
      ->capture_default_str();
  add("--temperature", request.temperature, "X", "Of the sampling; 0 takes the most likely token")
      ->check(real_number(0))
      ->capture_default_str();
  add("--trace", request.trace, "FILE",
      "A Chrome trace of all streams of all ranks (open in ui.perfetto.dev)");
  add("--print-schedule", request.print_schedule, "FILE",
      "Draw the pipeline's schedule as text, and as an SVG picture in FILE; with --trace the run "
      "beside it");
  add("--log-level", request.log_level, "LEVEL", "debug, info, warning, error or off")
      ->capture_default_str();
}

void add_checkpoints(CLI::App& command, TrainRequest& request) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return command.add_option(name, value, help)->group(kCheckpoints)->type_name(type);
  };
  CLI::Option* save =
      add("--save", request.save, "DIR",
          "Save to DIR/global_stepN at the end, and on SIGTERM or SIGINT, which then leave with "
          "exit code 3");
  add("--save-interval", request.save_interval, "N", "Save every so many steps as well")
      ->needs(save)
      ->check(whole_number(1));
  add("--keep-last", request.keep_last, "N", "Keep this many checkpoints, and remove older ones")
      ->needs(save)
      ->check(int_number(1));
  command
      .add_flag("--save-async", request.save_async,
                "Copy the state to host memory, and write it while training goes on")
      ->group(kCheckpoints)
      ->needs(save);
  CLI::Option* resume =
      add("--resume", request.resume, "DIR|latest",
          "Go on from a checkpoint, or from the last one of a folder; latest: of --save, if it has "
          "one. --steps counts from the run's start");
  add("--map", request.map, "OLD=NEW",
      "A name, or the beginning of names, of a checkpoint of DeepSpeed is the model's NEW; "
      "repeatable")
      ->needs(resume);
  add("--override", request.overrides, "KEY",
      "Of lr, clipping, batch, schedule take the checkpoint's rather than the configuration's; of "
      "steps, moments, scaler, data, seed the other way round; repeatable")
      ->needs(resume)
      ->check(CLI::IsMember(
          {"lr", "clipping", "batch", "schedule", "steps", "moments", "scaler", "data", "seed"}));
}

void add_options(CLI::App& command, TrainRequest& request) {
  add_model_and_data(command, request);
  add_run(command, request);
  add_parameters(command, request);
  add_outputs(command, request);
  add_checkpoints(command, request);
  command
      .add_flag("--reduce-each-micro-batch", request.reduce_each_micro_batch,
                "ZeRO stages 0 and 1 sum gradients over ranks every micro-batch, as 2 and 3 do")
      ->group(kDebugging);
  add_loading_options(command, request.loading);
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a ds_config says");
  auto request = std::make_shared<TrainRequest>();
  add_options(*command, *request);
  command->callback([request] { train(*request); });
}

}  // namespace zero3d::tools
