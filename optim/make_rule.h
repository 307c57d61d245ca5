// From the optimizer section of a configuration to an update rule: names, parameters and defaults
// as DeepSpeed has them. Knows nothing of how the section was read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/shape.h"
#include "zero3d/optim/parameters.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct OptimizerChoice {
  std::string type;  ///< "AdamW". Any case for Adam, AdamW, Adagrad, Lion, Lamb, Muon; "SGD" and
                     ///< "RMSprop" exactly.
  ParameterMap params;
  bool legacy_fusion = false;
  /// Optimizer states live off the device: DeepSpeed then takes its CPU classes, whose parameters
  /// differ a little.
  bool offloaded = false;
  /// Moments in bf16 (bf16.bf16_optimizer_states). Else fp32_optimizer_states decides, for
  /// offloaded optimizers.
  bool bf16_states = false;
  std::string path = "optimizer";  ///< Where the section stands, for messages.
};

struct OptimizerRules {
  std::unique_ptr<UpdateRule> rule;
  GroupSettings
      settings;  ///< Defaults of each group, before a schedule and before per-group values.
  /// Muon only: the Adam rule of parameters that muon_takes() refuses, and its settings.
  std::unique_ptr<UpdateRule> aux_rule;
  GroupSettings aux_settings;
  bool has_betas =
      false;  ///< DeepSpeed's optimizer of this type has `betas`: OneCycle drives them.
  bool bf16_states = false;  ///< Keep the states that allow it in bf16.
  bool tested_with_zero =
      false;  ///< Else DeepSpeed asks for zero_allow_untested_optimizer under ZeRO.
  std::vector<std::string> warnings;
};

/// Throws ConfigError for an unknown type (with the nearest known one), an unknown parameter, a
/// value out of range, and what DeepSpeed refuses: amsgrad, max_grad_norm. `type` must not be
/// empty.
OptimizerRules make_update_rule(const OptimizerChoice& choice);

/// Whether Muon orthogonalises this parameter: at least 2 dims, and neither "embed" nor "lm_head"
/// in its lowercase name.
bool muon_takes(std::string_view name, const Shape& shape);

/// The types make_update_rule knows.
std::vector<std::string> optimizer_types();

}  // namespace zero3d
