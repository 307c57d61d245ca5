// Rules between the keys of several sections: precision, reductions, data, and odd corners.

#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

void check_master_flags(Reader& reader, const JsonValue& root, const Config& config) {
  const int stage = config.zero_optimization.stage;
  const auto needs_zero = [&](const char* section, const char* key, bool on) {
    if (!on || stage > 0) return;
    reader.error(
        concat(section, ".", key),
        "needs ZeRO stage 1, 2 or 3, and zero_optimization.stage is 0; set a stage or remove "
        "the key",
        position_of(root, section, key));
  };
  needs_zero("fp16", "fp16_master_weights_and_grads", config.fp16.fp16_master_weights_and_grads);
  needs_zero("bf16", "bf16_master_weights_and_grads", config.bf16.bf16_master_weights_and_grads);
  needs_zero("bf16", "bf16_optimizer_states", config.bf16.bf16_optimizer_states);
  if (config.bf16.bf16_optimizer_states && !config.bf16.bf16_master_weights_and_grads) {
    reader.error("bf16.bf16_optimizer_states",
                 "needs bf16_master_weights_and_grads to be true as well",
                 position_of(root, "bf16", "bf16_optimizer_states"));
  }
  if (config.fp16.fp16_master_weights_and_grads && config.bf16.bf16_master_weights_and_grads) {
    reader.train_error("fp16.fp16_master_weights_and_grads",
                       "excludes bf16_master_weights_and_grads; keep the one of the format in use",
                       position_of(root, "fp16", "fp16_master_weights_and_grads"));
  }
}

void check_param_dtype(Reader& reader, const JsonValue& root, const Config& config) {
  if (!config.data_types.param_dtype) return;
  const auto stated = parse_ds_dtype(*config.data_types.param_dtype);
  if (stated == model_dtype(config)) return;
  reader.train_error(
      "data_types.param_dtype",
      concat("says ", *config.data_types.param_dtype, ", but the sections fp16 and bf16 make it ",
             name_of(model_dtype(config)), "; remove it or enable the other section"),
      position_of(root, "data_types", "param_dtype"));
}

/// Options of gradient reduction that exclude each other.
void check_reduction(Reader& reader, const JsonValue& root, const Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  if (config.gradient_allreduce_op == "sum") {
    const char* with = zero.stage == 3              ? "ZeRO stage 3"
                       : zero.zenflow               ? "zenflow"
                       : config.compile.deepcompile ? "compile.deepcompile"
                                                    : nullptr;
    if (with != nullptr) {
      reader.error(
          "gradient_allreduce_op",
          concat("\"sum\" does not work with ", with, "; write \"mean\" or remove the key"),
          position_of(root, "", "gradient_allreduce_op"));
    }
    return;
  }
  if (zero.stage < 2 || !zero.reduce_scatter) return;
  const auto exclude = [&](const char* key) {
    reader.train_error(key,
                       concat("has no meaning with reduce_scatter at stage ", zero.stage,
                              "; remove it or set zero_optimization.reduce_scatter to false"),
                       position_of(root, "", key));
  };
  if (config.prescale_gradients) exclude("prescale_gradients");
  if (config.gradient_predivide_factor != 1) exclude("gradient_predivide_factor");
}

void check_data_efficiency(Reader& reader, const JsonValue& root, const Config& config) {
  const auto& sampling = config.data_efficiency.data_sampling;
  const TextPosition position = position_of(root, "", "data_efficiency");
  const std::string path = "data_efficiency.data_sampling.";
  if (sampling.curriculum_learning.enabled) {
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
  if (sampling.dynamic_batching.enabled && !sampling.dynamic_batching.max_tokens) {
    reader.error(path + "dynamic_batching.max_tokens",
                 "required when dynamic_batching is enabled: state the tokens of a batch",
                 position);
  }
  if (config.data_efficiency.data_routing.random_ltd.layer_token_lr_schedule.enabled) {
    reader.train_error("data_efficiency.data_routing.random_ltd.layer_token_lr_schedule",
                       "not implemented, in DeepSpeed either; set enabled to false", position);
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
  const auto& checkpointing = config.activation_checkpointing;
  if (section != nullptr && checkpointing.contiguous_memory_optimization &&
      (!checkpointing.partition_activations || !checkpointing.number_checkpoints)) {
    reader.train_error("activation_checkpointing.contiguous_memory_optimization",
                       "needs partition_activations and number_checkpoints", section->position());
  }
  if (config.tensor_parallel.tensor_parallel.tp_size != 1 &&
      config.tensor_parallel.tensor_parallel.tp_size != config.tensor_parallel.autotp_size) {
    reader.train_error(
        "tensor_parallel.tensor_parallel.tp_size",
        concat("must be 1 or equal autotp_size ", config.tensor_parallel.autotp_size),
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
  const Fp16Config& fp16 = config.fp16;
  if (fp16.enabled && config.bf16.enabled) {
    reader.error("bf16.enabled", "fp16 and bf16 are both enabled; set one of them to false",
                 position_of(root, "bf16", "enabled"));
  }
  if (fp16.enabled && fp16.loss_scale == 0) {
    if (fp16.loss_scale_window <= 0) {
      reader.error("fp16.loss_scale_window",
                   concat("expected an integer > 0 while the loss scale is dynamic, found ",
                          fp16.loss_scale_window),
                   position_of(root, "fp16", "loss_scale_window"));
    }
    if (fp16.min_loss_scale <= 0) {
      reader.error("fp16.min_loss_scale",
                   concat("expected a number > 0 while the loss scale is dynamic, found ",
                          fp16.min_loss_scale, "; write 1"),
                   position_of(root, "fp16", "min_loss_scale"));
    }
  }
}

void finish_rest(Reader& reader, const JsonValue& root, Config& config) {
  if (config.flops_profiler.enabled && !config.wall_clock_breakdown) {
    config.wall_clock_breakdown = true;
    reader.record("wall_clock_breakdown", ValueSource::derived, "flops_profiler is enabled");
  }
  if (config.vocabulary_size.value_or(0) % 8 != 0) {
    reader.warning(
        "vocabulary_size",
        concat(*config.vocabulary_size, " is no multiple of 8; matrix units like multiples"),
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
