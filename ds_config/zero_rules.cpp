// Rules of zero_optimization: deprecated keys into their replacements, limits of the stages, and
// keys without effect at the stage at hand.
#include <algorithm>
#include <array>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/rules.h"
#include "zero3d/offload/io_options.h"

namespace zero3d::config {

namespace {

/// The member of zero_optimization under either spelling, unless it is "auto" (which DeepSpeed
/// drops); null when absent.
const JsonValue* zero_member(const JsonValue& root, const Field& field) {
  const JsonValue* zero = root.find("zero_optimization");
  for (const std::string_view spelling : {field.name, field.alias}) {
    if (zero == nullptr || spelling.empty()) continue;
    const JsonValue* value = zero->find(spelling);
    if (value != nullptr && !value->is_auto()) return value;
  }
  return nullptr;
}

struct Deprecated {
  std::string_view old_key;
  std::string_view new_key;
  std::string_view spelling;
};
constexpr std::array kDeprecated = {
    Deprecated{"cpu_offload", "offload_optimizer",
               "\"offload_optimizer\": { \"device\": \"cpu\" }"},
    Deprecated{"cpu_offload_param", "offload_param", "\"offload_param\": { \"device\": \"cpu\" }"},
    Deprecated{"cpu_offload_use_pin_memory", "",
               "\"pin_memory\" inside offload_param and offload_optimizer"},
    Deprecated{"stage3_gather_fp16_weights_on_model_save",
               "stage3_gather_16bit_weights_on_model_save",
               "stage3_gather_16bit_weights_on_model_save"}};

/// A deprecated key into its replacement.
void replace_deprecated(const Draft& draft, const Deprecated& key) {
  const JsonValue* value = zero_member(draft.root, *kZero.find(key.old_key));
  if (value == nullptr) return;
  const std::string path = concat("zero_optimization.", key.old_key);
  const Field* replacement = kZero.find(key.new_key);
  const JsonValue* other = replacement == nullptr ? nullptr : zero_member(draft.root, *replacement);
  if (other != nullptr) {
    draft.reader.error(
        path,
        concat("deprecated, and its replacement \"", key.new_key, "\" is there too (line ",
               other->position().line, "); remove \"", key.old_key, "\""),
        value->position());
    return;
  }
  draft.reader.warning(
      path,
      concat("deprecated", replacement == nullptr ? " and ignored" : "", "; write ", key.spelling),
      value->position());
  if (replacement == nullptr) return;
  std::string target = concat("zero_optimization.", key.new_key);
  if (replacement->nested == nullptr) {
    draft.config.set(target, draft.config.at(path));
  } else {
    if (!draft.config.flag(path)) return;
    draft.config.set(target, replacement->nested->defaults());
    target += ".device";
    draft.config.set(target, JsonValue("cpu"));
  }
  draft.reader.record(target, ValueSource::file,
                      concat("line ", value->position().line, ", as ", path));
}

/// Whether a value promises nothing: null, an explicit "off", an empty object.
bool says_nothing(const JsonValue& value) {
  const JsonValue* device = value.find("device");
  return value.is_null() || value == JsonValue(false) ||
         (value.is_object() && value.members().empty()) ||
         (device != nullptr && *device == JsonValue("none"));
}

void warn_without_effect(const Draft& draft) {
  const int stage = draft.config.stage();
  std::string at3, at12, at123;
  TextPosition first;
  for (const Field& field : kZero.fields) {
    const JsonValue* value = zero_member(draft.root, field);
    if (field.heeded_at(stage) || value == nullptr || says_nothing(*value)) continue;
    if (first.line == 0) first = value->position();
    append_item(field.last_stage == 2    ? at12
                : field.first_stage == 3 ? at3
                                         : at123,
                ", ", field.name);
  }
  std::string message;
  const auto add = [&](const std::string& keys, const char* where) {
    if (!keys.empty()) append_item(message, "; ", keys, " (only at ", where, ")");
  };
  add(at3, "stage 3");
  add(at12, "stages 1 and 2");
  add(at123, "stages 1 to 3");
  if (message.empty()) return;
  draft.reader.warning("zero_optimization",
                       concat("without effect at stage ", stage, ": ", message), first);
}

void check_super_offload(const Draft& draft) {
  const Config& config = draft.config;
  const std::string path = "zero_optimization.offload_optimizer.super_offload";
  if (!config.has("zero_optimization.offload_optimizer") || !config.flag(path) ||
      !config.offloads("offload_optimizer"))
    return;
  if (config.stage() == 3)
    draft.train_error(path,
                      "there is no SuperOffload here: its worker updates before the gradient norm "
                      "is known. Remove it: plain offload gives the same results, and a \"ratio\" "
                      "below 1 leaves a share of the updates on the device");
  else if (config.stage() > 0)
    draft.warning(path, "without effect below stage 3");
}

void require_folder_name(const Draft& draft, const std::string& key, const std::string& path) {
  if (path.find('\0') != std::string::npos)
    draft.train_error(key, "a path with a NUL character names no folder: remove it");
}

void check_offload(const Draft& draft) {
  const Config& config = draft.config;
  const int stage = config.stage();
  const JsonValue& ratio = config.at("zero_optimization.offload_optimizer.ratio");
  if (ratio.is_number() && ratio.as_number() < 1 && stage != 3)
    draft.error("zero_optimization.offload_optimizer.ratio",
                concat("a ratio below 1 needs stage 3, and the stage is ", stage,
                       "; set stage to 3 or remove the ratio"));
  for (const auto& [section, first_stage] :
       {std::pair("offload_optimizer", 1), std::pair("offload_param", 3)}) {
    const std::string path = concat("zero_optimization.", section, ".nvme_path");
    if (stage >= first_stage && config.offloads_to_drive(section) && !config.has(path) &&
        !config.has("zero3d.nvme_paths"))
      draft.train_error(path, "device \"nvme\" needs the folder on the drive: set nvme_path");
    if (config.has(path)) require_folder_name(draft, path, config.text(path));
  }
  if (config.has("zero3d.nvme_paths")) {
    for (const JsonValue& path : config.at("zero3d.nvme_paths").items())
      require_folder_name(draft, "zero3d.nvme_paths", path.as_string());
  }
  check_super_offload(draft);
  const std::int64_t block = config.has("aio") ? config.integer("aio.block_size") : 0;
  const std::int64_t whole = IoOptions::whole_pages(std::min(block, IoOptions::kMostBlock));
  if (config.uses_drives() && block < whole)
    draft.warning("aio.block_size",
                  concat("rounded up from ", block, " to ", whole, ", a multiple of 4096"));
}

void check_norm(const Draft& draft) {
  const Config& config = draft.config;
  const std::string path = "zero_optimization.compute_grad_norm";
  if (config.flag(path)) return;
  const int stage = config.stage();
  const double clipping = config.number("gradient_clipping");
  if (stage != 1 && stage != 2) {
    draft.error(path, concat("false works at stages 1 and 2 only, and the stage is ", stage,
                             "; remove it or set stage to 1 or 2"));
  } else if (clipping > 0) {
    const bool stated = draft.root.find("gradient_clipping") != nullptr;
    draft.train_error(path,
                      concat("false leaves nothing to clip by, but gradient_clipping is ", clipping,
                             stated ? "" : " by default", "; set gradient_clipping to 0"));
  }
}

void check_stage_limits(const Draft& draft) {
  const Config& config = draft.config;
  const int stage = config.stage();
  const auto refuse = [&](const char* key, const std::string& message) {
    draft.train_error(concat("zero_optimization.", key), message);
  };
  const auto size = [&](const char* key) {
    return config.integer(concat("zero_optimization.", key));
  };
  if (config.flag("zero_optimization.legacy_stage1") && stage > 0)
    refuse("legacy_stage1", "the old stage 1 is gone; remove the key");
  const std::int64_t bucket = size("allgather_bucket_size");
  if (bucket % 2 != 0 && (stage == 1 || stage == 2))
    refuse("allgather_bucket_size",
           concat("must be a multiple of 2, found ", bucket, "; write ", bucket + 1));
  const int dp = config.degrees.dp;
  const auto must_divide = [&](const char* key, std::int64_t ranks) {
    if (dp % ranks != 0) refuse(key, concat("must divide dp ", dp, ", found ", size(key)));
  };
  const std::int64_t secondary = size("zero_hpz_partition_size");
  if (stage == 3 && secondary > 1)
    must_divide("zero_hpz_partition_size", std::min<std::int64_t>(secondary, dp));
  const std::int64_t mics = size("mics_shard_size");
  if (stage > 0 && mics > 0) must_divide("mics_shard_size", mics);
}

}  // namespace

void finish_zero(const Draft& draft) {
  Config& config = draft.config;
  for (const Deprecated& key : kDeprecated) replace_deprecated(draft, key);
  const JsonValue* section = draft.root.find("zero_optimization");
  if (section != nullptr && section->is_bool() && section->as_bool() &&
      draft.root.find("allgather_size") != nullptr) {
    config.set("zero_optimization.allgather_bucket_size", config.at("allgather_size"));
    draft.reader.record("zero_optimization.allgather_bucket_size", ValueSource::file,
                        "as allgather_size");
  }
  if (!config.has("zero_optimization.overlap_comm")) {
    config.set("zero_optimization.overlap_comm", JsonValue(config.stage() == 3));
    draft.reader.record("zero_optimization.overlap_comm", ValueSource::derived,
                        concat("from stage ", config.stage()));
  }
  if (!config.has("zero_optimization.zenflow")) return;
  const std::string& strategy = config.text("zero_optimization.zenflow.select_strategy");
  const std::string path = "zero_optimization.zenflow.select_interval";
  const bool numbered = config.at(path).is_integer();
  if (strategy == "auto" && numbered) {
    draft.train_error(
        path, "a number needs select_strategy \"step\" or \"epoch\"; write \"auto\" or name one");
  } else if (strategy != "auto" && !numbered) {
    draft.train_error(path, concat("select_strategy \"", strategy, "\" needs a number here"));
  }
}

void check_zero(const Draft& draft) {
  check_offload(draft);
  check_norm(draft);
  check_stage_limits(draft);
  check_zenflow(draft);
  warn_without_effect(draft);
}

}  // namespace zero3d::config
