#include "zero3d/ds_config/settings.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/trainable.h"

namespace zero3d {
namespace {

ParameterValue to_parameter_value(const JsonValue& value, const std::string& path) {
  switch (value.kind()) {
    case JsonValue::Kind::null:
      return std::monostate{};
    case JsonValue::Kind::boolean:
      return value.as_bool();
    case JsonValue::Kind::integer:
      return value.as_integer();
    case JsonValue::Kind::number:
      return value.as_number();
    case JsonValue::Kind::string:
      return value.as_string();
    case JsonValue::Kind::array: {
      std::vector<double> numbers;
      for (const JsonValue& item : value.items()) {
        if (!item.is_number())
          throw ConfigError(path, concat("expected a list of numbers, found ", value.excerpt()));
        numbers.push_back(item.as_number());
      }
      return numbers;
    }
    case JsonValue::Kind::object:
      break;
  }
  throw ConfigError(
      path, concat("expected a number, a flag, a string or a list, found ", value.excerpt()));
}

ParameterMap to_parameter_map(const ConfigParams& params) {
  ParameterMap map;
  for (const JsonMember& member : params.json().members()) {
    map.emplace(member.name, to_parameter_value(member.value, params.path() + "." + member.name));
  }
  return map;
}

OptimizerChoice optimizer_choice(const Config& config) {
  if (!config.optimizer || !config.optimizer->type) {
    throw ConfigError("optimizer",
                      "training needs an optimizer: add for example "
                      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}");
  }
  OptimizerChoice choice;
  choice.type = *config.optimizer->type;
  choice.params = to_parameter_map(config.optimizer->params);
  choice.legacy_fusion = config.optimizer->legacy_fusion;
  const auto& offload = config.zero_optimization.offload_optimizer;
  choice.offloaded = offload && offload->device != OffloadDevice::none;
  choice.bf16_states = config.bf16.bf16_optimizer_states;
  return choice;
}

LossScalerOptions loss_scaler_options(const Fp16Config& fp16, int stage) {
  LossScalerOptions options;
  options.static_scale = fp16.loss_scale;
  options.initial_scale_power = static_cast<int>(fp16.initial_scale_power);
  options.window = fp16.loss_scale_window;
  options.hysteresis = fp16.hysteresis;
  options.consecutive_hysteresis = fp16.consecutive_hysteresis;
  options.min_scale = fp16.min_loss_scale;
  options.stage0 = stage == 0;
  return options;
}

ShardingSettings sharding_settings(const ZeroConfig& zero) {
  ShardingSettings sharding;
  sharding.what = sharding_policy(zero.stage);
  sharding.ranks = static_cast<int>(std::max<std::int64_t>(zero.mics_shard_size, 0));
  sharding.secondary_ranks = static_cast<int>(zero.zero_hpz_partition_size);
  sharding.gather_bucket = zero.allgather_bucket_size;
  sharding.prefetch = zero.allgather_sequential
                          ? std::min<std::int64_t>(1, zero.prefetch_bucket_size)
                          : zero.prefetch_bucket_size;
  sharding.max_live = zero.max_live_parameters;
  sharding.max_reuse_distance = zero.max_reuse_distance;
  sharding.persistent_parameter = zero.param_persistence_threshold;
  sharding.persistent_total = zero.model_persistence_threshold;
  sharding.gather_to_save = zero.gather_16bit_weights_on_model_save;
  return sharding;
}

GradientSettings gradient_settings(const Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  GradientSettings gradients;
  gradients.mean = config.gradient_allreduce_op != "sum";
  gradients.prescale = config.prescale_gradients;
  gradients.predivide_factor = config.gradient_predivide_factor;
  gradients.reduce_bucket = zero.reduce_bucket_size;
  gradients.overlap_reduction = zero.overlap_comm.value_or(zero.stage == 3);
  gradients.reduce_scatter = zero.reduce_scatter;
  gradients.max_norm = config.gradient_clipping;
  gradients.take_norm = zero.compute_grad_norm;
  // DeepSpeed looks at this flag at stages 1 and 2 only.
  gradients.skip_non_finite =
      !config.bf16.enabled || config.bf16.check_grad_overflow || zero.stage == 0 || zero.stage == 3;
  return gradients;
}

}  // namespace

TrainSettings train_settings(const Config& config) {
  TrainSettings settings;
  settings.micro_batch = config.train_micro_batch_size_per_gpu;
  settings.accumulation = config.gradient_accumulation_steps;
  settings.managed_accumulation = config.managed_gradient_accumulation;
  settings.tp = config.degrees.tp;
  settings.pp = config.degrees.pp;
  settings.sp = config.degrees.sp;
  settings.sharding = sharding_settings(config.zero_optimization);
  settings.gradients = gradient_settings(config);
  settings.precision = {model_dtype(config), accumulation_dtype(config),
                        communication_dtype(config), master_dtype(config), std::nullopt};
  if (config.fp16.enabled)
    settings.precision.loss_scale =
        loss_scaler_options(config.fp16, config.zero_optimization.stage);
  settings.optimizer = optimizer_choice(config);
  if (config.scheduler && config.scheduler->type)
    settings.schedule = {*config.scheduler->type, to_parameter_map(config.scheduler->params)};
  settings.optimizer_tile = config.zero_optimization.sub_group_size;
  settings.log_every = config.steps_per_print.value_or(0);
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
