#include "zero3d/ds_config/settings.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/trainable.h"

namespace zero3d {
namespace {

/// Takes settings from a configuration, and gathers what of it is none.
class SettingsReader {
 public:
  explicit SettingsReader(const Config& config) : config_(config) {}

  TrainSettings read();
  std::vector<ConfigMessage> problems;

 private:
  void problem(std::string path, std::string message) {
    problems.push_back({std::move(path), std::move(message), {}});
  }

  int int_sized(const char* path) { return sized<int>(config_.integer(path), path); }
  /// The double, which is computed with as a float somewhere.
  double float_sized(const char* path) {
    const double value = config_.number(path);
    sized<float>(value, path);
    return value;
  }
  template <typename To, typename From>
  To sized(From value, const char* path) {
    if (fits<To>(value)) return narrow<To>(value, path);
    problem(path, concat("expected ", range_of<To>(), ", found ", value));
    return To{};
  }

  ParameterMap parameters(const std::string& path);
  OptimizerChoice optimizer();
  LossScalerOptions loss_scaler();
  ShardingSettings sharding();
  GradientSettings gradients();
  RecomputationSettings recomputation();

  const Config& config_;
};

ParameterMap SettingsReader::parameters(const std::string& path) {
  ParameterMap map;
  for (const JsonMember& member : config_.at(path).members()) {
    const std::optional<ParameterValue> value = parameter_value(member.value);
    if (value) {
      map.emplace(member.name, *value);
    } else {
      problem(concat(path, ".", member.name),
              concat("expected a number, a flag, a string or a list of numbers, found ",
                     member.value.excerpt()));
    }
  }
  return map;
}

OptimizerChoice SettingsReader::optimizer() {
  OptimizerChoice choice;
  if (!config_.has("optimizer") || !config_.has("optimizer.type")) {
    problem(config_.has("optimizer") ? "optimizer.type" : "optimizer",
            "training needs an optimizer: add for example "
            "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}");
    return choice;
  }
  choice.type = config_.text("optimizer.type");
  choice.params = parameters("optimizer.params");
  choice.legacy_fusion = config_.flag("optimizer.legacy_fusion");
  choice.offloaded = config_.offloads("offload_optimizer");
  choice.bf16_states = config_.flag("bf16.bf16_optimizer_states");
  return choice;
}

LossScalerOptions SettingsReader::loss_scaler() {
  LossScalerOptions options;
  options.static_scale = float_sized("fp16.loss_scale");
  options.initial_scale_power = int_sized("fp16.initial_scale_power");
  options.window = config_.integer("fp16.loss_scale_window");
  options.hysteresis = config_.integer("fp16.hysteresis");
  options.consecutive_hysteresis = config_.flag("fp16.consecutive_hysteresis");
  options.min_scale = float_sized("fp16.min_loss_scale");
  options.stage0 = config_.stage() == 0;
  return options;
}

ShardingSettings SettingsReader::sharding() {
  const auto size = [&](const char* key) {
    return config_.integer(concat("zero_optimization.", key));
  };
  ShardingSettings result;
  result.what = sharding_policy(config_.stage());
  result.ranks = std::max(int_sized("zero_optimization.mics_shard_size"), 0);
  result.secondary_ranks = int_sized("zero_optimization.zero_hpz_partition_size");
  result.gather_bucket = size("allgather_bucket_size");
  result.prefetch = size("stage3_prefetch_bucket_size");
  if (config_.flag("zero_optimization.stage3_allgather_sequential"))
    result.prefetch = std::min<std::int64_t>(1, result.prefetch);
  result.max_live = size("stage3_max_live_parameters");
  result.max_reuse_distance = size("stage3_max_reuse_distance");
  result.persistent_parameter = size("stage3_param_persistence_threshold");
  result.persistent_total = size("stage3_model_persistence_threshold");
  result.gather_to_save =
      config_.flag("zero_optimization.stage3_gather_16bit_weights_on_model_save");
  return result;
}

GradientSettings SettingsReader::gradients() {
  const int stage = config_.stage();
  GradientSettings result;
  result.mean = config_.text("gradient_allreduce_op") != "sum";
  result.prescale = config_.flag("prescale_gradients");
  result.predivide_factor = float_sized("gradient_predivide_factor");
  result.reduce_bucket = config_.integer("zero_optimization.reduce_bucket_size");
  result.overlap_reduction = config_.flag("zero_optimization.overlap_comm");
  result.reduce_scatter = config_.flag("zero_optimization.reduce_scatter");
  result.max_norm = config_.number("gradient_clipping");
  result.take_norm = config_.flag("zero_optimization.compute_grad_norm");
  // DeepSpeed looks at this flag at stages 1 and 2 only.
  result.skip_non_finite = !config_.flag("bf16.enabled") ||
                           config_.flag("bf16.check_grad_overflow") || stage == 0 || stage == 3;
  return result;
}

/// DeepSpeed leaves it to the script whether anything is computed again, and takes from the file
/// how.
RecomputationSettings SettingsReader::recomputation() {
  const int interval = int_sized("pipeline.activation_checkpoint_interval");
  if (interval > 0) return {.interval = interval};
  const char* const number = "activation_checkpointing.number_checkpoints";
  if (config_.has(number)) {
    const int groups = int_sized(number);
    if (groups < 1) problem(number, concat("expected 1 or more, found ", config_.integer(number)));
    return {.groups = groups};
  }
  if (config_.flag("activation_checkpointing.partition_activations") ||
      config_.flag("activation_checkpointing.cpu_checkpointing"))
    return {.interval = 1};
  return {};
}

TrainSettings SettingsReader::read() {
  TrainSettings settings;
  settings.micro_batch = config_.integer("train_micro_batch_size_per_gpu");
  settings.accumulation = int_sized("gradient_accumulation_steps");
  settings.managed_accumulation = config_.flag("managed_gradient_accumulation");
  settings.dp = config_.degrees.dp;
  settings.tp = config_.degrees.tp;
  settings.pp = config_.degrees.pp;
  settings.sp = config_.degrees.sp;
  settings.sharding = sharding();
  settings.gradients = gradients();
  settings.precision = {model_dtype(config_), accumulation_dtype(config_),
                        communication_dtype(config_), master_dtype(config_), std::nullopt};
  if (config_.flag("fp16.enabled")) settings.precision.loss_scale = loss_scaler();
  settings.recomputation = recomputation();
  settings.optimizer = optimizer();
  if (config_.has("scheduler") && config_.has("scheduler.type"))
    settings.schedule = {config_.text("scheduler.type"), parameters("scheduler.params")};
  settings.optimizer_tile = config_.integer("zero_optimization.sub_group_size");
  if (config_.has("steps_per_print")) settings.log_every = config_.integer("steps_per_print");
  return settings;
}

}  // namespace

ReadSettings read_settings(const Config& config) {
  SettingsReader reader(config);
  TrainSettings settings = reader.read();
  return {std::move(settings), std::move(reader.problems)};
}

TrainSettings train_settings(const Config& config) {
  ReadSettings read = read_settings(config);
  std::string message;
  for (const ConfigMessage& problem : read.problems) append_item(message, "\n  ", problem.text());
  if (!message.empty()) throw ConfigError("", message);
  return std::move(read.settings);
}

TrainSettings load_settings(std::string_view source, int ranks) {
  LoadOptions options;
  options.ranks = ranks;
  const LoadResult loaded = load_config(source, options);
  loaded.require_ok();
  check_trainable(loaded).require_ok(loaded);
  return train_settings(loaded.config);
}

TrainingSession initialize(std::string_view source, const Module& module, Communicator& world,
                           const EngineOptions& options, int threads) {
  return initialize(load_settings(source, world.size()), module, world, options, threads);
}

}  // namespace zero3d
