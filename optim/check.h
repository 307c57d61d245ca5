// Range checks that the rules share: settings reach them from a configuration, from per-group
// values and from schedules.
#pragma once

#include <string>

#include "zero3d/optim/update_rule.h"

namespace zero3d {

/// lr, eps and weight_decay finite and not negative, the step at least 1. Throws Error(kInvalid)
/// naming the rule and the setting.
void check_settings(const std::string& rule, const GroupSettings& group,
                    const StepContext& context);
/// A setting in [0, 1).
void check_fraction(const std::string& rule, const char* setting, double value);

}  // namespace zero3d
