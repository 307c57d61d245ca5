#include "config_options.h"

#include "zero3d/ds_config/model_size.h"

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
      ->check(CLI::PositiveNumber);
  command.add_option("--pp", load.pp, "Pipeline stages, over the file's")
      ->check(CLI::PositiveNumber);
  command.add_flag("--strict", load.strict, "Unknown top-level keys are errors");
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(kAutoGroup);
  };
  add("--lr", autos.lr, "Learning rate");
  add("--weight-decay", autos.weight_decay, "Weight decay");
  add("--betas", options.betas, "B1,B2")->delimiter(',')->expected(2);
  add("--eps", autos.eps, "Epsilon of the optimizer");
  add("--warmup-steps", autos.warmup_steps, "Steps of the warm-up");
  add("--micro-batch", autos.micro_batch, "Samples a rank computes at a time")
      ->check(CLI::PositiveNumber);
  add("--accumulation", autos.accumulation, "Micro-batches added up before a step")
      ->check(CLI::PositiveNumber);
  add("--global-batch", autos.global_batch, "Samples of one step")->check(CLI::PositiveNumber);
  add("--max-grad-norm", autos.max_grad_norm, "Gradient clipping");
  add("--precision", autos.precision, "fp32, fp16 or bf16")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
}

void add_config_options(CLI::App& command, ConfigOptions& options) {
  AutoValues& autos = options.load.autos;
  command.add_option("--ranks", options.load.ranks, "World size: ranks = dp x tp x pp")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_loading_options(command, options);
  command.add_option("--model", options.model, "Model folder: its hidden size sets bucket sizes")
      ->group(kAutoGroup);
  command.add_option("--hidden-size", autos.hidden_size, "Hidden size of the model")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->group(kAutoGroup);
  command.add_option("--steps", autos.steps, "Steps of the run")->group(kAutoGroup);
}

}  // namespace zero3d::tools
