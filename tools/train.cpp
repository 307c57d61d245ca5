// zero3d train: its options.
#include "command.h"
#include "config_options.h"
#include "train_launch.h"
#include "train_options.h"

namespace zero3d::tools {
namespace {

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
  command.add_flag(
      "--no-bind", request.no_bind,
      "Let the threads of all ranks run on any core, rather than each rank on its own");
  command.add_option("--seed", request.seed, "Of initial weights, dropout, shuffling and sampling")
      ->capture_default_str();
  command.add_option("--freeze", request.freeze,
                     "Freeze parameters whose name this regular expression finds; repeatable");
  command.add_option("--no-decay", request.no_decay, "No weight decay for these names; repeatable");
  command.add_option("--metrics", request.metrics, "Write a JSON line for each step to this file");
  command.add_option("--export", request.export_folder,
                     "Write the trained model as a Hugging Face folder");
  CLI::Option* eval_data =
      command.add_option("--eval-data", request.eval_data,
                         "Evaluation data, one or more files in the format of --data");
  command
      .add_option("--eval-interval", request.eval_interval,
                  "Evaluate every so many steps; default: at the end")
      ->needs(eval_data)
      ->check(CLI::PositiveNumber);
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

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a ds_config says");
  auto request = std::make_shared<TrainRequest>();
  add_options(*command, *request);
  command->callback([request] { train(*request); });
}

}  // namespace zero3d::tools
