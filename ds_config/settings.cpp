#include "zero3d/ds_config/settings.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/rules.h"
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
  PipelineSettings pipeline();
  OffloadSettings offload();
  OptimizerOffload optimizer_offload();
  DelayedUpdateSettings delayed_updates();
  ParameterOffload parameter_offload();
  IoOptions io();
  int buffers(const char* path);
  int bounded(const char* path, int least, int most, const char* what);
  OffloadDevice device(const std::string& section) const;
  std::vector<std::string> paths(const std::string& section) const;

  TagValidation tag_validation() const;

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

TagValidation SettingsReader::tag_validation() const {
  const std::string word = lower_case(config_.text("checkpoint.tag_validation"));
  for (const TagValidation one : {TagValidation::ignore, TagValidation::fail})
    if (word == name_of(one)) return one;
  return TagValidation::warn;
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
  // 0 is off, as 1 is.
  result.secondary_ranks = std::max(1, int_sized("zero_optimization.zero_hpz_partition_size"));
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

PipelineSettings SettingsReader::pipeline() {
  PipelineSettings result;
  const auto attempt = [this](const char* path, const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      problem(path, error.what());
    }
  };
  if (config_.degrees.pp == 1) return result;
  attempt("zero3d.schedule", [&] {
    result.schedule = parse_pipeline_schedule(config_.text("zero3d.schedule"));
    if (config_.has("zero3d.virtual_stages"))
      result.virtual_stages = int_sized("zero3d.virtual_stages");
    pipeline_shape(result.schedule, config_.degrees.pp, result.virtual_stages);
  });
  const char* const partition =
      config_.has("zero3d.partition") ? "zero3d.partition" : "pipeline.partition";
  attempt(partition, [&] { result.partition = parse_partition(config_.text(partition)); });
  if (!config_.flag("managed_gradient_accumulation"))
    problem("managed_gradient_accumulation",
            "false leaves the steps to the caller, and a pipeline runs whole ones; set it to true");
  return result;
}

OffloadDevice SettingsReader::device(const std::string& section) const {
  if (!config_.offloads(section)) return OffloadDevice::none;
  return config_.offloads_to_drive(section) ? OffloadDevice::nvme : OffloadDevice::cpu;
}

/// None where nvme_path is missing, which a rule reports.
std::vector<std::string> SettingsReader::paths(const std::string& section) const {
  if (!config_.offloads_to_drive(section)) return {};
  std::vector<std::string> paths;
  if (config_.has("zero3d.nvme_paths")) {
    for (const JsonValue& path : config_.at("zero3d.nvme_paths").items())
      paths.push_back(path.as_string());
  } else if (config_.has(concat("zero_optimization.", section, ".nvme_path"))) {
    paths.push_back(config_.text(concat("zero_optimization.", section, ".nvme_path")));
  }
  return paths;
}

OptimizerOffload SettingsReader::optimizer_offload() {
  OptimizerOffload result;
  result.device = device("offload_optimizer");
  if (!result.on()) return result;
  const auto key = [](const char* name) {
    return concat("zero_optimization.offload_optimizer.", name);
  };
  result.paths = paths("offload_optimizer");
  result.pin_memory = config_.flag(key("pin_memory"));
  result.pipeline_read = config_.flag(key("pipeline_read"));
  result.pipeline_write = config_.flag(key("pipeline_write"));
  result.ratio = config_.number(key("ratio"));
  if (result.device == OffloadDevice::nvme)
    result.buffer_count = buffers("zero_optimization.offload_optimizer.buffer_count");
  return result;
}

ParameterOffload SettingsReader::parameter_offload() {
  ParameterOffload result;
  result.device = device("offload_param");
  if (!result.on()) return result;
  result.pin_memory = config_.flag("zero_optimization.offload_param.pin_memory");
  if (result.device != OffloadDevice::nvme) return result;
  result.paths = paths("offload_param");
  result.buffer_count = buffers("zero_optimization.offload_param.buffer_count");
  const char* const size = "zero_optimization.offload_param.buffer_size";
  result.buffer_elements = config_.integer(size);
  if (result.buffer_elements < 1) problem(size, "expected 1 or more with device nvme, found 0");
  result.max_in_cpu = config_.integer("zero_optimization.offload_param.max_in_cpu");
  return result;
}

int SettingsReader::buffers(const char* path) {
  return bounded(path, 1, OffloadSettings::kMostBuffers, "buffers");
}

int SettingsReader::bounded(const char* path, int least, int most, const char* what) {
  const std::int64_t value = config_.integer(path);
  if (value >= least && value <= most) return static_cast<int>(value);
  problem(path, concat("expected ", least, " to ", most, " ", what, ", found ", value));
  return least;
}

IoOptions SettingsReader::io() {
  IoOptions result;
  const std::int64_t asked = config_.integer("aio.block_size");
  if (asked > IoOptions::kMostBlock)
    problem("aio.block_size",
            concat("expected at most ", IoOptions::kMostBlock, ", found ", asked));
  else
    result.block_size = IoOptions::whole_pages(asked);
  result.queue_depth = bounded("aio.queue_depth", 1, IoOptions::kMostUnderWay, "requests");
  result.intra_op_parallelism =
      bounded("aio.intra_op_parallelism", 1, IoOptions::kMostThreads, "threads");
  result.single_submit = config_.flag("aio.single_submit");
  result.overlap_events = config_.flag("aio.overlap_events");
  return result;
}

/// As DeepSpeed: nothing of the optimizer at stage 0, parameters at stage 3 alone.
OffloadSettings SettingsReader::offload() {
  OffloadSettings result;
  if (config_.stage() > 0) result.optimizer = optimizer_offload();
  if (config_.stage() == 3) result.parameters = parameter_offload();
  result.activations = config_.flag("activation_checkpointing.cpu_checkpointing");
  if (!result.uses_drives()) return result;
  result.io = io();
  result.checksums = config_.flag("zero3d.checksums");
  return result;
}

/// What a rule refuses is not read.
DelayedUpdateSettings SettingsReader::delayed_updates() {
  const std::string section = "zero_optimization.zenflow";
  if (config_.stage() < 1 || !config_.has(section)) return {};
  const auto key = [&](const char* name) { return concat(section, ".", name); };
  const auto number_or = [&](const char* name, std::int64_t otherwise) {
    const JsonValue& value = config_.at(key(name));
    return value.is_integer() ? value.as_integer() : otherwise;
  };
  DelayedUpdateSettings result;
  result.update_every = number_or("update_interval", config::kAutoUpdateInterval);
  result.share = config_.number(key("topk_ratio"));
  const std::int64_t interval = number_or("select_interval", 1);
  (config_.text(key("select_strategy")) == "step" ? result.select_every : result.select_epochs) =
      interval;
  result.steps_of_epoch = number_or("steps_per_epoch", 0);
  result.overlap = config_.flag(key("overlap_step"));
  result.warm_up = config_.integer(key("full_warm_up_rounds"));
  return result;
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
  settings.overlap_tp = settings.tp > 1 && config_.flag("tensor_parallel.tp_overlap_comm");
  settings.split_kept =
      settings.tp > 1 && config_.flag("activation_checkpointing.partition_activations");
  settings.pipeline = pipeline();
  settings.split_rows = settings.tp > 1 && config_.flag("zero3d.sequence_parallel");
  settings.sharding = sharding();
  settings.gradients = gradients();
  settings.precision = {model_dtype(config_), accumulation_dtype(config_),
                        communication_dtype(config_), master_dtype(config_), std::nullopt};
  if (config_.flag("fp16.enabled")) settings.precision.loss_scale = loss_scaler();
  settings.recomputation = recomputation();
  settings.offload = offload();
  settings.delayed_updates = delayed_updates();
  settings.tiles = {int_sized("zero3d.linear_tiles"), int_sized("zero3d.head_tiles")};
  settings.optimizer = optimizer();
  if (config_.has("scheduler") && config_.has("scheduler.type"))
    settings.schedule = {config_.text("scheduler.type"), parameters("scheduler.params")};
  settings.optimizer_tile = config_.integer("zero_optimization.sub_group_size");
  if (config_.has("steps_per_print")) settings.log_every = config_.integer("steps_per_print");
  settings.tag_validation = tag_validation();
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
                           const EngineOptions& options, int threads, DeviceChoice device) {
  return initialize(load_settings(source, world.size()), module, world, options, threads, device);
}

}  // namespace zero3d
