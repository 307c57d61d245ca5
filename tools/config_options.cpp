// The options of the subcommands that look at ds_config files alone, and those they share with
// train.
#include "config_options.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "command.h"
#include "option_checks.h"
#include "validate.h"
#include "zero3d/ds_config/docs.h"
#include "zero3d/models/model_size.h"

namespace zero3d::tools {
namespace {

constexpr const char* kAutoGroup = "Values for \"auto\"";

}  // namespace

LoadOptions ConfigOptions::resolved() const {
  LoadOptions result = load;
  if (betas.size() == 2) result.autos.betas = {betas[0], betas[1]};
  if (!model.empty() && !result.autos.hidden_size) {
    result.autos.hidden_size = model_hidden_size(model);
  }
  return result;
}

void add_loading_options(CLI::App& command, ConfigOptions& options) {
  LoadOptions& load = options.load;
  AutoValues& autos = load.autos;
  command.add_option("--tp", load.tp, "Tensor-parallel degree, over the file's")
      ->check(int_number(1));
  command.add_option("--pp", load.pp, "Pipeline stages, over the file's")->check(int_number(1));
  command.add_option("--sp", load.sp, "Ranks that share a sequence, over the file's")
      ->check(int_number(1));
  command
      .add_option("--schedule", load.schedule,
                  "Order of forward and backward in a pipeline, over the file's")
      ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}));
  command
      .add_option("--virtual-stages", load.virtual_stages,
                  "Chunks of the model on each rank of a pipeline, over the file's")
      ->check(int_number(1));
  command.add_option("--partition", load.partition,
                     "How blocks are dealt to stages, over the file's: parameters, uniform, time, "
                     "type:REGEX or a list such as 3,3,4,2");
  command
      .add_option("--recompute", load.recompute,
                  "Keep the inputs of every N-th block alone and compute forward again before "
                  "backward, over the file's")
      ->check(int_number(1));
  command.add_flag("--strict", load.strict, "Unknown top-level keys are errors");
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(kAutoGroup);
  };
  add("--lr", autos.lr, "Learning rate")->check(real_number());
  add("--weight-decay", autos.weight_decay, "Weight decay")->check(real_number());
  add("--betas", options.betas, "B1,B2")->check(real_number())->delimiter(',')->expected(2);
  add("--eps", autos.eps, "Epsilon of the optimizer")->check(real_number());
  add("--warmup-steps", autos.warmup_steps, "Steps of the warm-up")->check(whole_number(0));
  add("--micro-batch", autos.micro_batch, "Samples a rank computes at a time")
      ->check(whole_number(1));
  add("--accumulation", autos.accumulation, "Micro-batches added up before a step")
      ->check(whole_number(1));
  add("--global-batch", autos.global_batch, "Samples of one step")->check(whole_number(1));
  add("--max-grad-norm", autos.max_grad_norm, "Gradient clipping")->check(real_number());
  add("--precision", autos.precision, "fp32, fp16 or bf16")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
}

void add_config_options(CLI::App& command, ConfigOptions& options) {
  AutoValues& autos = options.load.autos;
  command.add_option("--ranks", options.load.ranks, "World size: ranks = dp x tp x pp x sp")
      ->check(int_number(1))
      ->capture_default_str();
  add_loading_options(command, options);
  command
      .add_option("--model", options.model,
                  "Model folder or built-in shape: its hidden size sets bucket sizes")
      ->group(kAutoGroup);
  command.add_option("--hidden-size", autos.hidden_size, "Hidden size of the model")
      ->check(whole_number(1, std::uint64_t{1} << 30))
      ->group(kAutoGroup);
  command.add_option("--steps", autos.steps, "Steps of the run")
      ->check(whole_number(1))
      ->group(kAutoGroup);
}

void add_validate(CLI::App& app) {
  auto options = std::make_shared<ValidateOptions>();
  CLI::App* command = app.add_subcommand(
      "validate", "Check ds_config files and show what each value becomes, without any device");
  command->add_option("files", options->files, "ds_config files")->required();
  command->add_flag("--json", options->json, "One JSON object a line, with every value");
  command->add_flag("--all", options->all,
                    "Every value of each file, not only what is not default");
  add_config_options(*command, options->config);
  command->callback([options] { validate(*options); });
}

/// Prints docs/config.md; for the people who maintain it, so not listed.
void add_config_docs(CLI::App& app) {
  CLI::App* command = app.add_subcommand("config-docs", "Print docs/config.md");
  command->group("");
  command->callback([] { std::cout << config_reference(); });
}

}  // namespace zero3d::tools
