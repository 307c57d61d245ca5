// Rules between the keys of several sections: precision, reductions, data, and odd corners.

#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

void check_master_flags(Reader& reader, const JsonValue& root, const Config& config) {
  for (const auto& [section, key] : {std::pair("fp16", "fp16_master_weights_and_grads"),
                                     std::pair("bf16", "bf16_master_weights_and_grads"),
                                     std::pair("bf16", "bf16_optimizer_states")}) {
    const std::string path = concat(section, ".", key);
    if (!config.flag(path) || config.stage() > 0) continue;
    reader.error(
        path,
        "needs ZeRO stage 1, 2 or 3, and zero_optimization.stage is 0; set a stage or remove "
        "the key",
        position_of(root, section, key));
  }
  const bool bf16_masters = config.flag("bf16.bf16_master_weights_and_grads");
  if (config.flag("bf16.bf16_optimizer_states") && !bf16_masters) {
    reader.error("bf16.bf16_optimizer_states",
                 "needs bf16_master_weights_and_grads to be true as well",
                 position_of(root, "bf16", "bf16_optimizer_states"));
  }
  if (config.flag("fp16.fp16_master_weights_and_grads") && bf16_masters) {
    reader.train_error("fp16.fp16_master_weights_and_grads",
                       "excludes bf16_master_weights_and_grads; keep the one of the format in use",
                       position_of(root, "fp16", "fp16_master_weights_and_grads"));
  }
}

void check_param_dtype(Reader& reader, const JsonValue& root, const Config& config) {
  if (!config.has("data_types.param_dtype")) return;
  const std::string& stated = config.text("data_types.param_dtype");
  if (parse_ds_dtype(stated) == model_dtype(config)) return;
  reader.train_error(
      "data_types.param_dtype",
      concat("says ", stated, ", but the sections fp16 and bf16 make it ",
             name_of(model_dtype(config)), "; remove it or enable the other section"),
      position_of(root, "data_types", "param_dtype"));
}

/// Options of gradient reduction that exclude each other.
void check_reduction(Reader& reader, const JsonValue& root, const Config& config) {
  const int stage = config.stage();
  if (config.text("gradient_allreduce_op") == "sum") {
    const char* with = stage == 3                                ? "ZeRO stage 3"
                       : config.has("zero_optimization.zenflow") ? "zenflow"
                       : config.flag("compile.deepcompile")      ? "compile.deepcompile"
                                                                 : nullptr;
    if (with != nullptr) {
      reader.error(
          "gradient_allreduce_op",
          concat("\"sum\" does not work with ", with, "; write \"mean\" or remove the key"),
          position_of(root, "", "gradient_allreduce_op"));
    }
    return;
  }
  if (stage < 2 || !config.flag("zero_optimization.reduce_scatter")) return;
  const auto exclude = [&](const char* key) {
    reader.train_error(key,
                       concat("has no meaning with reduce_scatter at stage ", stage,
                              "; remove it or set zero_optimization.reduce_scatter to false"),
                       position_of(root, "", key));
  };
  if (config.flag("prescale_gradients")) exclude("prescale_gradients");
  if (config.number("gradient_predivide_factor") != 1) exclude("gradient_predivide_factor");
}

void check_data_efficiency(Reader& reader, const JsonValue& root, const Config& config) {
  const TextPosition position = position_of(root, "", "data_efficiency");
  const std::string path = "data_efficiency.data_sampling.";
  if (config.flag(path + "curriculum_learning.enabled")) {
    const JsonValue* node = root.find("data_efficiency");
    for (const char* name : {"data_sampling", "curriculum_learning", "curriculum_metrics"}) {
      node = node == nullptr ? nullptr : node->find(name);
    }
    if (node == nullptr) {
      reader.error(path + "curriculum_learning.curriculum_metrics",
                   "required when curriculum_learning is enabled: name at least one metric",
                   position);
    }
  }
  if (config.flag(path + "dynamic_batching.enabled") &&
      !config.has(path + "dynamic_batching.max_tokens")) {
    reader.error(path + "dynamic_batching.max_tokens",
                 "required when dynamic_batching is enabled: state the tokens of a batch",
                 position);
  }
  const std::string by_tokens = "data_efficiency.data_routing.random_ltd.layer_token_lr_schedule";
  if (config.flag(by_tokens + ".enabled")) {
    reader.train_error(by_tokens, "not implemented, in DeepSpeed either; set enabled to false",
                       position);
  }
}

/// Python's idea of nothing: these folders must not be that.
bool is_falsy(const JsonValue& value) {
  return value.is_null() || value == JsonValue(false) || value == JsonValue(0) ||
         (value.is_string() && value.as_string().empty()) ||
         (value.is_array() && value.items().empty()) ||
         (value.is_object() && value.members().empty());
}

void check_autotuning(Reader& reader, const JsonValue& root) {
  const JsonValue* section = root.find("autotuning");
  for (const char* key : {"results_dir", "exps_dir"}) {
    const JsonValue* value = section == nullptr ? nullptr : section->find(key);
    if (value == nullptr || !is_falsy(*value)) continue;
    reader.error(
        join_path("autotuning", key),
        concat("must name a folder, found ", value->excerpt(), "; remove it for the default"),
        value->position());
  }
}

void check_activations_and_degrees(Reader& reader, const JsonValue& root, const Config& config) {
  const JsonValue* section = root.find("activation_checkpointing");
  const std::string contiguous = "activation_checkpointing.contiguous_memory_optimization";
  if (section != nullptr && config.flag(contiguous) &&
      (!config.flag("activation_checkpointing.partition_activations") ||
       !config.has("activation_checkpointing.number_checkpoints"))) {
    reader.train_error(contiguous, "needs partition_activations and number_checkpoints",
                       section->position());
  }
  const std::string inner = "tensor_parallel.tensor_parallel.tp_size";
  const std::int64_t degree = config.integer("tensor_parallel.autotp_size");
  if (config.integer(inner) != 1 && config.integer(inner) != degree) {
    reader.train_error(inner, concat("must be 1 or equal autotp_size ", degree),
                       position_of(root, "", "tensor_parallel"));
  }
}

}  // namespace

TextPosition position_of(const JsonValue& root, std::string_view section, std::string_view key) {
  const JsonValue* node = section.empty() ? &root : root.find(section);
  const JsonValue* value = node == nullptr ? nullptr : node->find(key);
  return value != nullptr ? value->position() : node != nullptr ? node->position() : TextPosition{};
}

void finish_precision(Reader& reader, const JsonValue& root, Config& config) {
  if (!config.flag("fp16.enabled")) return;
  if (config.flag("bf16.enabled")) {
    reader.error("bf16.enabled", "fp16 and bf16 are both enabled; set one of them to false",
                 position_of(root, "bf16", "enabled"));
  }
  if (config.number("fp16.loss_scale") != 0) return;
  const std::int64_t window = config.integer("fp16.loss_scale_window");
  if (window <= 0) {
    reader.error("fp16.loss_scale_window",
                 concat("expected an integer > 0 while the loss scale is dynamic, found ", window),
                 position_of(root, "fp16", "loss_scale_window"));
  }
  const double least = config.number("fp16.min_loss_scale");
  if (least <= 0) {
    reader.error(
        "fp16.min_loss_scale",
        concat("expected a number > 0 while the loss scale is dynamic, found ", least, "; write 1"),
        position_of(root, "fp16", "min_loss_scale"));
  }
}

void finish_rest(Reader& reader, const JsonValue& root, Config& config) {
  if (config.flag("flops_profiler.enabled") && !config.flag("wall_clock_breakdown")) {
    config.set("wall_clock_breakdown", JsonValue(true));
    reader.record("wall_clock_breakdown", ValueSource::derived, "flops_profiler is enabled");
  }
  if (config.has("vocabulary_size") && config.integer("vocabulary_size") % 8 != 0) {
    reader.warning("vocabulary_size",
                   concat(config.integer("vocabulary_size"),
                          " is no multiple of 8; matrix units like multiples"),
                   position_of(root, "", "vocabulary_size"));
  }
  check_zero(reader, root, config);
  check_master_flags(reader, root, config);
  check_param_dtype(reader, root, config);
  check_reduction(reader, root, config);
  check_data_efficiency(reader, root, config);
  check_autotuning(reader, root);
  check_activations_and_degrees(reader, root, config);
}

}  // namespace zero3d::config
