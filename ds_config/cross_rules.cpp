// Rules between the keys of several sections: precision, reductions, data, and odd corners.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

void check_master_flags(const Draft& draft) {
  const Config& config = draft.config;
  for (const char* path : {"fp16.fp16_master_weights_and_grads",
                           "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"}) {
    if (!config.flag(path) || config.stage() > 0) continue;
    draft.error(path,
                "needs ZeRO stage 1, 2 or 3, and zero_optimization.stage is 0; set a stage or "
                "remove the key");
  }
  const bool bf16_masters = config.flag("bf16.bf16_master_weights_and_grads");
  if (config.flag("bf16.bf16_optimizer_states") && !bf16_masters)
    draft.error("bf16.bf16_optimizer_states",
                "needs bf16_master_weights_and_grads to be true as well");
  if (config.flag("fp16.fp16_master_weights_and_grads") && bf16_masters)
    draft.train_error("fp16.fp16_master_weights_and_grads",
                      "excludes bf16_master_weights_and_grads; keep the one of the format in use");
}

void check_param_dtype(const Draft& draft) {
  if (!draft.config.has("data_types.param_dtype")) return;
  const std::string& stated = draft.config.text("data_types.param_dtype");
  const DType dtype = model_dtype(draft.config);
  if (parse_ds_dtype(stated) == dtype) return;
  draft.train_error("data_types.param_dtype",
                    concat("says ", stated, ", but the sections fp16 and bf16 make it ",
                           name_of(dtype), "; remove it or enable the other section"));
}

/// Options of gradient reduction that exclude each other.
void check_reduction(const Draft& draft) {
  const Config& config = draft.config;
  const int stage = config.stage();
  if (config.text("gradient_allreduce_op") == "sum") {
    const char* with = stage == 3                                ? "ZeRO stage 3"
                       : config.has("zero_optimization.zenflow") ? "zenflow"
                       : config.flag("compile.deepcompile")      ? "compile.deepcompile"
                                                                 : nullptr;
    if (with == nullptr) return;
    draft.error("gradient_allreduce_op",
                concat("\"sum\" does not work with ", with, "; write \"mean\" or remove the key"));
    return;
  }
  if (stage < 2 || !config.flag("zero_optimization.reduce_scatter")) return;
  const auto exclude = [&](const char* key) {
    draft.train_error(key, concat("has no meaning with reduce_scatter at stage ", stage,
                                  "; remove it or set zero_optimization.reduce_scatter to false"));
  };
  if (config.flag("prescale_gradients")) exclude("prescale_gradients");
  if (config.number("gradient_predivide_factor") != 1) exclude("gradient_predivide_factor");
}

void check_data_efficiency(const Draft& draft) {
  const Config& config = draft.config;
  const std::string path = "data_efficiency.data_sampling.";
  const std::string metrics = path + "curriculum_learning.curriculum_metrics";
  if (config.flag(path + "curriculum_learning.enabled") && !draft.root.find_path(metrics))
    draft.error(metrics, "required when curriculum_learning is enabled: name at least one metric");
  if (config.flag(path + "dynamic_batching.enabled") &&
      !config.has(path + "dynamic_batching.max_tokens"))
    draft.error(path + "dynamic_batching.max_tokens",
                "required when dynamic_batching is enabled: state the tokens of a batch");
  const std::string by_tokens = "data_efficiency.data_routing.random_ltd.layer_token_lr_schedule";
  if (config.flag(by_tokens + ".enabled"))
    draft.train_error(by_tokens, "not implemented, in DeepSpeed either; set enabled to false");
}

void check_autotuning(const Draft& draft) {
  for (const char* path : {"autotuning.results_dir", "autotuning.exps_dir"}) {
    const JsonValue* value = draft.root.find_path(path);
    if (value != nullptr && is_falsy(*value))
      draft.error(path, concat("must name a folder, found ", value->excerpt(),
                               "; remove it for the default"));
  }
}

void check_activations_and_degrees(const Draft& draft) {
  const Config& config = draft.config;
  const std::string contiguous = "activation_checkpointing.contiguous_memory_optimization";
  if (config.flag(contiguous) && (!config.flag("activation_checkpointing.partition_activations") ||
                                  !config.has("activation_checkpointing.number_checkpoints")))
    draft.train_error(contiguous, "needs partition_activations and number_checkpoints");
  const std::string inner = "tensor_parallel.tensor_parallel.tp_size";
  const std::int64_t degree = config.integer("tensor_parallel.autotp_size");
  if (config.integer(inner) != 1 && config.integer(inner) != degree)
    draft.train_error(inner, concat("must be 1 or equal autotp_size ", degree));
}

}  // namespace

TextPosition position_of(const JsonValue& root, std::string_view path) {
  const std::string_view section = path.substr(0, path.find('.'));
  const JsonValue* node = root.find_path(path.substr(0, path.find('.', section.size() + 1)));
  if (node == nullptr) node = root.find(section);
  return node == nullptr ? TextPosition{} : node->position();
}

void Draft::error(const std::string& path, std::string message) const {
  reader.error(path, std::move(message), position_of(root, path));
}

void Draft::warning(const std::string& path, std::string message) const {
  reader.warning(path, std::move(message), position_of(root, path));
}

void Draft::train_error(const std::string& path, std::string message) const {
  reader.train_error(path, std::move(message), position_of(root, path));
}

void finish_precision(const Draft& draft) {
  const Config& config = draft.config;
  if (!config.flag("fp16.enabled")) return;
  if (config.flag("bf16.enabled"))
    draft.error("bf16.enabled", "fp16 and bf16 are both enabled; set one of them to false");
  if (config.number("fp16.loss_scale") != 0) return;
  const std::int64_t window = config.integer("fp16.loss_scale_window");
  if (window <= 0)
    draft.error("fp16.loss_scale_window",
                concat("expected an integer > 0 while the loss scale is dynamic, found ", window));
  const double least = config.number("fp16.min_loss_scale");
  if (least <= 0)
    draft.error("fp16.min_loss_scale",
                concat("expected a number > 0 while the loss scale is dynamic, found ", least,
                       "; write 1"));
}

void finish_rest(const Draft& draft) {
  Config& config = draft.config;
  if (config.flag("flops_profiler.enabled") && !config.flag("wall_clock_breakdown")) {
    config.set("wall_clock_breakdown", JsonValue(true));
    draft.reader.record("wall_clock_breakdown", ValueSource::derived, "flops_profiler is enabled");
  }
  if (config.has("vocabulary_size") && config.integer("vocabulary_size") % 8 != 0)
    draft.warning("vocabulary_size", concat(config.integer("vocabulary_size"),
                                            " is no multiple of 8; matrix units like multiples"));
  check_zero(draft);
  check_master_flags(draft);
  check_param_dtype(draft);
  check_reduction(draft);
  check_data_efficiency(draft);
  check_autotuning(draft);
  check_activations_and_degrees(draft);
}

}  // namespace zero3d::config
