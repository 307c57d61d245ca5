#include "zero3d/ds_config/config.h"

#include <algorithm>
#include <cctype>

namespace zero3d {

bool OptimizerConfig::is(std::string_view name) const {
  return type && std::equal(type->begin(), type->end(), name.begin(), name.end(),
                            [](unsigned char a, unsigned char b) {
                              return std::tolower(a) == std::tolower(b);
                            });
}

std::optional<DType> parse_ds_dtype(std::string_view text) {
  if (text.substr(0, 6) == "torch.") {
    text.remove_prefix(6);
    // Only the class names have the prefix: torch.float16 and torch.half, never torch.fp16.
    if (text.substr(0, 2) == "fp" || text == "bf16") return std::nullopt;
  }
  if (text == "fp16" || text == "float16" || text == "half") return DType::f16;
  if (text == "bf16" || text == "bfloat16") return DType::bf16;
  if (text == "fp32" || text == "float32" || text == "float") return DType::f32;
  return std::nullopt;
}

DType model_dtype(const Config& config) {
  if (config.fp16.enabled) return DType::f16;
  return config.bf16.enabled ? DType::bf16 : DType::f32;
}

DType communication_dtype(const Config& config) {
  if (config.degrees.sp > 1) return config.seq_parallel_communication_data_type;
  return config.communication_data_type.value_or(accumulation_dtype(config));
}

DType accumulation_dtype(const Config& config) {
  if (!config.data_types.grad_accum_dtype)
    return master_dtype(config);  // fp32, but for *_master_weights_and_grads
  return parse_ds_dtype(*config.data_types.grad_accum_dtype).value_or(DType::f32);
}

DType master_dtype(const Config& config) {
  if (config.fp16.enabled && config.fp16.fp16_master_weights_and_grads) return DType::f16;
  if (config.bf16.enabled && config.bf16.bf16_master_weights_and_grads) return DType::bf16;
  return DType::f32;
}

}  // namespace zero3d
