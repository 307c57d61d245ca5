#include "zero3d/ds_config/settings.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/trainable.h"

namespace zero3d {
namespace {

int int_sized(const Config& config, const char* path) {
  return narrow<int>(config.integer(path), path);
}

/// The double, which is computed with as a float somewhere.
double float_sized(const Config& config, const char* path) {
  const double value = config.number(path);
  narrow<float>(value, path);
  return value;
}

ParameterMap to_parameter_map(const Config& config, const std::string& path) {
  ParameterMap map;
  for (const JsonMember& member : config.at(path).members()) {
    const std::optional<ParameterValue> value = parameter_value(member.value);
    if (!value) {
      throw ConfigError(concat(path, ".", member.name),
                        concat("expected a number, a flag, a string or a list of numbers, found ",
                               member.value.excerpt()));
    }
    map.emplace(member.name, *value);
  }
  return map;
}

OptimizerChoice optimizer_choice(const Config& config) {
  if (!config.has("optimizer") || !config.has("optimizer.type")) {
    throw ConfigError("optimizer",
                      "training needs an optimizer: add for example "
                      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}");
  }
  OptimizerChoice choice;
  choice.type = config.text("optimizer.type");
  choice.params = to_parameter_map(config, "optimizer.params");
  choice.legacy_fusion = config.flag("optimizer.legacy_fusion");
  choice.offloaded = config.offloads("offload_optimizer");
  choice.bf16_states = config.flag("bf16.bf16_optimizer_states");
  return choice;
}

LossScalerOptions loss_scaler_options(const Config& config) {
  LossScalerOptions options;
  options.static_scale = float_sized(config, "fp16.loss_scale");
  options.initial_scale_power = int_sized(config, "fp16.initial_scale_power");
  options.window = config.integer("fp16.loss_scale_window");
  options.hysteresis = config.integer("fp16.hysteresis");
  options.consecutive_hysteresis = config.flag("fp16.consecutive_hysteresis");
  options.min_scale = float_sized(config, "fp16.min_loss_scale");
  options.stage0 = config.stage() == 0;
  return options;
}

ShardingSettings sharding_settings(const Config& config) {
  const auto size = [&](const char* key) {
    return config.integer(concat("zero_optimization.", key));
  };
  ShardingSettings sharding;
  sharding.what = sharding_policy(config.stage());
  sharding.ranks = std::max(int_sized(config, "zero_optimization.mics_shard_size"), 0);
  sharding.secondary_ranks = int_sized(config, "zero_optimization.zero_hpz_partition_size");
  sharding.gather_bucket = size("allgather_bucket_size");
  sharding.prefetch = size("stage3_prefetch_bucket_size");
  if (config.flag("zero_optimization.stage3_allgather_sequential"))
    sharding.prefetch = std::min<std::int64_t>(1, sharding.prefetch);
  sharding.max_live = size("stage3_max_live_parameters");
  sharding.max_reuse_distance = size("stage3_max_reuse_distance");
  sharding.persistent_parameter = size("stage3_param_persistence_threshold");
  sharding.persistent_total = size("stage3_model_persistence_threshold");
  sharding.gather_to_save =
      config.flag("zero_optimization.stage3_gather_16bit_weights_on_model_save");
  return sharding;
}

GradientSettings gradient_settings(const Config& config) {
  const int stage = config.stage();
  GradientSettings gradients;
  gradients.mean = config.text("gradient_allreduce_op") != "sum";
  gradients.prescale = config.flag("prescale_gradients");
  gradients.predivide_factor = float_sized(config, "gradient_predivide_factor");
  gradients.reduce_bucket = config.integer("zero_optimization.reduce_bucket_size");
  gradients.overlap_reduction = config.flag("zero_optimization.overlap_comm");
  gradients.reduce_scatter = config.flag("zero_optimization.reduce_scatter");
  gradients.max_norm = config.number("gradient_clipping");
  gradients.take_norm = config.flag("zero_optimization.compute_grad_norm");
  // DeepSpeed looks at this flag at stages 1 and 2 only.
  gradients.skip_non_finite = !config.flag("bf16.enabled") ||
                              config.flag("bf16.check_grad_overflow") || stage == 0 || stage == 3;
  return gradients;
}

}  // namespace

TrainSettings train_settings(const Config& config) {
  TrainSettings settings;
  settings.micro_batch = config.integer("train_micro_batch_size_per_gpu");
  settings.accumulation = int_sized(config, "gradient_accumulation_steps");
  settings.managed_accumulation = config.flag("managed_gradient_accumulation");
  settings.dp = config.degrees.dp;
  settings.tp = config.degrees.tp;
  settings.pp = config.degrees.pp;
  settings.sp = config.degrees.sp;
  settings.sharding = sharding_settings(config);
  settings.gradients = gradient_settings(config);
  settings.precision = {model_dtype(config), accumulation_dtype(config),
                        communication_dtype(config), master_dtype(config), std::nullopt};
  if (config.flag("fp16.enabled")) settings.precision.loss_scale = loss_scaler_options(config);
  settings.optimizer = optimizer_choice(config);
  if (config.has("scheduler") && config.has("scheduler.type"))
    settings.schedule = {config.text("scheduler.type"),
                         to_parameter_map(config, "scheduler.params")};
  settings.optimizer_tile = config.integer("zero_optimization.sub_group_size");
  if (config.has("steps_per_print")) settings.log_every = config.integer("steps_per_print");
  return settings;
}

TrainSettings load_settings(std::string_view source, int ranks) {
  LoadOptions options;
  options.ranks = ranks;
  const LoadResult loaded = load_config(source, options);
  loaded.require_ok();
  check_trainable(loaded).require_ok();
  return train_settings(loaded.config);
}

TrainingSession initialize(std::string_view source, const Module& module, Communicator& world,
                           const EngineOptions& options, int threads) {
  return initialize(load_settings(source, world.size()), module, world, options, threads);
}

}  // namespace zero3d
