// The options of the subcommands that look at checkpoints.
#include <CLI/CLI.hpp>
#include <memory>

#include "command.h"
#include "export_checkpoint.h"
#include "inspect.h"
#include "option_checks.h"

namespace zero3d::tools {

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "Tell what a checkpoint holds");
  command
      ->add_option("checkpoint", options->checkpoint,
                   "A checkpoint, or a folder whose last one is meant")
      ->required();
  command->add_flag("--tensors", options->tensors, "A line for each parameter");
  command->add_flag("--verify", options->verify, "Read all of it, and hold it to its checksums");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] { inspect(*options); });
}

void add_diff(CLI::App& app) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* command = app.add_subcommand(
      "diff", "Compare two checkpoints, whatever meshes saved them; exit code 1 when they differ");
  command->add_option("a", options->a, "The first")->required();
  command->add_option("b", options->b, "The second")->required();
  command->add_option("--show", options->shown, "Differences to name")
      ->check(int_number(1))
      ->capture_default_str();
  command->add_option("--tolerance", options->tolerance, "Absolute; nearer values are the same")
      ->check(real_number(0))
      ->capture_default_str();
  command->callback([options] { diff(*options); });
}

void add_export(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      app.add_subcommand("export", "Write a checkpoint as a Hugging Face model folder");
  command
      ->add_option("checkpoint", options->checkpoint,
                   "A checkpoint, or a folder whose last one is meant")
      ->required();
  command->add_option("--out", options->out, "The folder to write")->required()->type_name("DIR");
  command
      ->add_option("--model", options->model,
                   "Folder with the model's config.json and tokenizer; default: what the run used")
      ->type_name("DIR|NAME");
  command
      ->add_option("--map", options->map,
                   "A name, or the beginning of names, of a checkpoint of DeepSpeed is the model's "
                   "NEW; repeatable")
      ->type_name("OLD=NEW");
  command->add_option("--dtype", options->dtype, "Of the weights; default: what the run trained in")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--max-shard", options->max_shard, "Largest file, such as 5GB; default: 50GB")
      ->type_name("SIZE");
  CLI::Option* deepspeed = command->add_flag(
      "--deepspeed", options->deepspeed,
      "Write a checkpoint that DeepSpeed and its zero_to_fp32.py load instead, with Adam's states");
  command->add_option("--ranks", options->ranks, "Data-parallel ranks that will load it")
      ->needs(deepspeed)
      ->check(int_number(1, 4096))
      ->capture_default_str();
  command->add_option("--zero-stage", options->zero_stage, "1, 2 or 3; default: that of the run")
      ->needs(deepspeed)
      ->check(int_number(1, 3));
  command
      ->add_option("--config", options->config,
                   "The ds_config that will load it; default: that of the run")
      ->needs(deepspeed)
      ->type_name("FILE");
  command->callback([options] { export_checkpoint(*options); });
}

}  // namespace zero3d::tools
