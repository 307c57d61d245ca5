// Rules of zero_optimization: deprecated keys into their replacements, limits of the stages, and
// keys without effect at the stage at hand.
#include <algorithm>
#include <array>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

/// The member of zero_optimization under either spelling, unless it is "auto" (which DeepSpeed
/// drops); null when absent.
const JsonValue* zero_member(const JsonValue& root, std::string_view key) {
  const JsonValue* zero = root.find("zero_optimization");
  const Field* field = zero_section().find(key);
  if (zero == nullptr || field == nullptr) return nullptr;
  for (const std::string& spelling : {field->name, field->alias}) {
    const JsonValue* value = spelling.empty() ? nullptr : zero->find(spelling);
    if (value != nullptr && !value->is_auto()) return value;
  }
  return nullptr;
}

void replace_deprecated(Reader& reader, const JsonValue& root, Config& config) {
  struct Deprecated {
    std::string_view old_key;
    std::string_view new_key;
    std::string_view spelling;
  };
  constexpr std::array kDeprecated = {
      Deprecated{"cpu_offload", "offload_optimizer",
                 "\"offload_optimizer\": { \"device\": \"cpu\" }"},
      Deprecated{"cpu_offload_param", "offload_param",
                 "\"offload_param\": { \"device\": \"cpu\" }"},
      Deprecated{"cpu_offload_use_pin_memory", "",
                 "\"pin_memory\" inside offload_param and offload_optimizer"},
      Deprecated{"stage3_gather_fp16_weights_on_model_save",
                 "stage3_gather_16bit_weights_on_model_save",
                 "stage3_gather_16bit_weights_on_model_save"}};
  ZeroConfig& zero = config.zero_optimization;
  for (const Deprecated& key : kDeprecated) {
    const JsonValue* value = zero_member(root, key.old_key);
    if (value == nullptr) continue;
    const std::string path = concat("zero_optimization.", key.old_key);
    const JsonValue* other = key.new_key.empty() ? nullptr : zero_member(root, key.new_key);
    if (other != nullptr) {
      reader.error(
          path,
          concat("deprecated, and its replacement \"", key.new_key, "\" is there too (line ",
                 other->position().line, "); remove \"", key.old_key, "\""),
          value->position());
      continue;
    }
    reader.warning(
        path,
        concat("deprecated", key.new_key.empty() ? " and ignored" : "", "; write ", key.spelling),
        value->position());
    const std::string note = concat("line ", value->position().line, ", as ", path);
    if (key.old_key == "cpu_offload" && zero.cpu_offload.value_or(false)) {
      zero.offload_optimizer.emplace().device = OffloadDevice::cpu;
      reader.record("zero_optimization.offload_optimizer.device", ValueSource::file, note);
    } else if (key.old_key == "cpu_offload_param" && zero.cpu_offload_param.value_or(false)) {
      zero.offload_param.emplace().device = OffloadDevice::cpu;
      reader.record("zero_optimization.offload_param.device", ValueSource::file, note);
    } else if (key.old_key == "stage3_gather_fp16_weights_on_model_save") {
      zero.gather_16bit_weights_on_model_save = zero.gather_fp16_weights_on_model_save;
      reader.record(concat("zero_optimization.", key.new_key), ValueSource::file, note);
    }
  }
}

/// Keys that work at some stages only, by their name in zero_optimization.
struct StageKeys {
  std::string_view key;
  int first;
  int last;
};
constexpr std::array kStageKeys = {
    StageKeys{"offload_param", 3, 3},
    StageKeys{"offload_optimizer", 1, 3},
    StageKeys{"zenflow", 1, 3},
    StageKeys{"sub_group_size", 3, 3},
    StageKeys{"stage3_prefetch_bucket_size", 3, 3},
    StageKeys{"stage3_param_persistence_threshold", 3, 3},
    StageKeys{"stage3_model_persistence_threshold", 3, 3},
    StageKeys{"stage3_max_live_parameters", 3, 3},
    StageKeys{"stage3_max_reuse_distance", 3, 3},
    StageKeys{"stage3_gather_16bit_weights_on_model_save", 3, 3},
    StageKeys{"stage3_module_granularity_threshold", 3, 3},
    StageKeys{"stage3_use_all_reduce_for_fetch_params", 3, 3},
    StageKeys{"stage3_allgather_sequential", 3, 3},
    StageKeys{"zero_hpz_partition_size", 3, 3},
    StageKeys{"zero_quantized_weights", 3, 3},
    StageKeys{"zero_quantized_nontrainable_weights", 3, 3},
    StageKeys{"zero_quantized_gradients", 3, 3},
    StageKeys{"mics_shard_size", 3, 3},
    StageKeys{"mics_hierarchical_params_gather", 3, 3},
    StageKeys{"leaf_module", 3, 3},
    StageKeys{"pipeline_loading_checkpoint", 3, 3},
    StageKeys{"allgather_bucket_size", 1, 2},
    StageKeys{"use_multi_rank_bucket_allreduce", 1, 2},
    StageKeys{"round_robin_gradients", 1, 2},
    StageKeys{"parameter_alignment", 1, 2},
    StageKeys{"reduce_scatter", 1, 3},
    StageKeys{"contiguous_gradients", 1, 3},
};

void warn_without_effect(Reader& reader, const JsonValue& root, const Config& config) {
  const int stage = config.zero_optimization.stage;
  std::string at3;
  std::string at12;
  std::string at123;
  TextPosition first;
  for (const StageKeys& entry : kStageKeys) {
    if (stage >= entry.first && stage <= entry.last) continue;
    const JsonValue* value = zero_member(root, entry.key);
    if (value == nullptr) continue;
    // A default or an explicit "off" promises nothing.
    const bool off = value->is_null() || (value->is_bool() && !value->as_bool()) ||
                     (value->is_object() && value->members().empty());
    const JsonValue* device = value->find("device");
    if (off || (device != nullptr && device->is_string() && device->as_string() == "none"))
      continue;
    if (first.line == 0) first = value->position();
    std::string& list = entry.last == 2 ? at12 : entry.first == 3 ? at3 : at123;
    list += concat(list.empty() ? "" : ", ", entry.key);
  }
  std::string message;
  const auto add = [&](const std::string& keys, const char* where) {
    if (keys.empty()) return;
    message += concat(message.empty() ? "" : "; ", keys, " (", where, ")");
  };
  add(at3, "only at stage 3");
  add(at12, "only at stages 1 and 2");
  add(at123, "only at stages 1 to 3");
  if (message.empty()) return;
  reader.warning("zero_optimization", concat("without effect at stage ", stage, ": ", message),
                 first);
}

bool is_nvme(const std::optional<OffloadOptimizerConfig>& offload) {
  return offload && offload->device == OffloadDevice::nvme;
}

void check_offload(Reader& reader, const JsonValue& root, const Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  const auto at = [&](const char* key) { return position_of(root, "zero_optimization", key); };
  if (zero.offload_optimizer && zero.offload_optimizer->ratio < 1 && zero.stage != 3) {
    reader.error("zero_optimization.offload_optimizer.ratio",
                 concat("a ratio below 1 needs stage 3, and the stage is ", zero.stage,
                        "; set stage to 3 or remove the ratio"),
                 at("offload_optimizer"));
  }
  if (is_nvme(zero.offload_optimizer) && (zero.stage == 1 || zero.stage == 2)) {
    reader.warning("zero_optimization.offload_optimizer.device",
                   concat("at stage ", zero.stage,
                          " \"nvme\" means host memory: the drive serves stage 3 only"),
                   at("offload_optimizer"));
  }
  if (zero.stage != 3) return;
  if (is_nvme(zero.offload_optimizer) && !zero.offload_optimizer->nvme_path) {
    reader.train_error("zero_optimization.offload_optimizer.nvme_path",
                       "device \"nvme\" needs the folder on the drive: set nvme_path",
                       at("offload_optimizer"));
  }
  if (zero.offload_param && zero.offload_param->device == OffloadDevice::nvme &&
      !zero.offload_param->nvme_path) {
    reader.train_error("zero_optimization.offload_param.nvme_path",
                       "device \"nvme\" needs the folder on the drive: set nvme_path",
                       at("offload_param"));
  }
}

void check_norm(Reader& reader, const JsonValue& root, const Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  if (zero.compute_grad_norm) return;
  const std::string path = "zero_optimization.compute_grad_norm";
  const TextPosition position = position_of(root, "zero_optimization", "compute_grad_norm");
  if (zero.stage != 1 && zero.stage != 2) {
    reader.error(path,
                 concat("false works at stages 1 and 2 only, and the stage is ", zero.stage,
                        "; remove it or set stage to 1 or 2"),
                 position);
  } else if (config.gradient_clipping > 0) {
    reader.train_error(path,
                       concat("false leaves nothing to clip by, but gradient_clipping is ",
                              config.gradient_clipping,
                              root.find("gradient_clipping") == nullptr ? " by default" : "",
                              "; set gradient_clipping to 0"),
                       position);
  }
}

void check_stage_limits(Reader& reader, const JsonValue& root, const Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  if (zero.legacy_stage1 && zero.stage > 0) {
    reader.train_error("zero_optimization.legacy_stage1", "the old stage 1 is gone; remove the key",
                       position_of(root, "zero_optimization", "legacy_stage1"));
  }
  if (zero.allgather_bucket_size % 2 != 0 && (zero.stage == 1 || zero.stage == 2)) {
    reader.train_error("zero_optimization.allgather_bucket_size",
                       concat("must be a multiple of 2, found ", zero.allgather_bucket_size,
                              "; write ", zero.allgather_bucket_size + 1),
                       position_of(root, "zero_optimization", "allgather_bucket_size"));
  }
  const int dp = config.degrees.dp;
  if (zero.stage == 3 && zero.zero_hpz_partition_size > 1 &&
      dp % std::min<std::int64_t>(zero.zero_hpz_partition_size, dp) != 0) {
    reader.train_error("zero_optimization.zero_hpz_partition_size",
                       concat("must divide dp ", dp, ", found ", zero.zero_hpz_partition_size),
                       position_of(root, "zero_optimization", "zero_hpz_partition_size"));
  }
  if (zero.stage == 3 && zero.mics_shard_size > 0 && dp % zero.mics_shard_size != 0) {
    reader.train_error("zero_optimization.mics_shard_size",
                       concat("must divide dp ", dp, ", found ", zero.mics_shard_size),
                       position_of(root, "zero_optimization", "mics_shard_size"));
  }
  if (config.degrees.pp > 1 && zero.stage >= 2) {
    reader.train_error("zero_optimization.stage",
                       concat("pipeline parallelism works with stages 0 and 1, found ", zero.stage),
                       position_of(root, "zero_optimization", "stage"));
  }
}

}  // namespace

void finish_zero(Reader& reader, const JsonValue& root, Config& config) {
  replace_deprecated(reader, root, config);
  ZeroConfig& zero = config.zero_optimization;
  const JsonValue* section = root.find("zero_optimization");
  if (section != nullptr && section->is_bool() && section->as_bool() &&
      root.find("allgather_size") != nullptr) {
    zero.allgather_bucket_size = config.allgather_size;
    reader.record("zero_optimization.allgather_bucket_size", ValueSource::file,
                  "as allgather_size");
  }
  if (!zero.overlap_comm) {
    zero.overlap_comm = zero.stage == 3;
    reader.record("zero_optimization.overlap_comm", ValueSource::derived,
                  concat("from stage ", zero.stage));
  }
  if (zero.zenflow) {
    const ZenFlowConfig& flow = *zero.zenflow;
    const TextPosition position = position_of(root, "zero_optimization", "zenflow");
    if (flow.select_strategy == "auto" && flow.select_interval) {
      reader.train_error(
          "zero_optimization.zenflow.select_interval",
          "a number needs select_strategy \"step\" or \"epoch\"; write \"auto\" or name one",
          position);
    } else if (flow.select_strategy != "auto" && !flow.select_interval) {
      reader.train_error(
          "zero_optimization.zenflow.select_interval",
          concat("select_strategy \"", flow.select_strategy, "\" needs a number here"), position);
    }
  }
}

void check_zero(Reader& reader, const JsonValue& root, const Config& config) {
  check_offload(reader, root, config);
  check_norm(reader, root, config);
  check_stage_limits(reader, root, config);
  warn_without_effect(reader, root, config);
}

}  // namespace zero3d::config
