// Typed sections of ds_config on number formats: fp16, bf16, torch_autocast, data_types. The values
// here are DeepSpeed's defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero3d/formats/json_value.h"

namespace zero3d {

struct Fp16Config {
  bool enabled = false;                        ///< Parameters, activations and gradients in fp16.
  bool auto_cast = false;                      ///< Cast floating inputs of the model to fp16.
  double loss_scale = 0;                       ///< 0: dynamic; otherwise the fixed scale.
  std::int64_t initial_scale_power = 16;       ///< Dynamic scaling starts at 2^this.
  std::int64_t loss_scale_window = 1000;       ///< Clean steps before the scale doubles.
  std::int64_t hysteresis = 2;                 ///< Overflows tolerated before the scale halves.
  bool consecutive_hysteresis = false;         ///< A clean step refills the hysteresis.
  double min_loss_scale = 1;                   ///< The floor of dynamic scaling; fractions allowed.
  bool fp16_master_weights_and_grads = false;  ///< Master weights in fp16 (ZeRO 1-3).
};

struct Bf16Config {
  bool enabled = false;                        ///< Parameters, activations and gradients in bf16.
  bool immediate_grad_update = false;          ///< Accumulate from the gradient hook.
  bool check_grad_overflow = true;             ///< Skip a step whose gradients are not finite.
  bool bf16_master_weights_and_grads = false;  ///< Master weights in bf16 (ZeRO 1-3).
  bool bf16_optimizer_states = false;          ///< Moments in bf16; needs the flag above.
};

struct TorchAutocastConfig {
  bool enabled = false;
  std::optional<std::string> dtype;  ///< As written; "bfloat16", ...
  /// Class names whose parameters get their gradients communicated in `dtype`; empty: the default
  /// set (linear and convolutions).
  std::vector<std::string> lower_precision_safe_modules;
};

struct DataTypesConfig {
  /// Each as written ("fp32", "bf16", ...; see parse_ds_dtype); absent: see the functions of
  /// config.h.
  std::optional<std::string> grad_accum_dtype;
  std::optional<std::string> param_dtype;
  std::optional<std::string> buffer_dtype;
  /// Absent: "auto" (what the model's own list says); else buffer name patterns, * wild.
  std::optional<std::vector<std::string>> keep_in_fp32_modules;
};

}  // namespace zero3d
