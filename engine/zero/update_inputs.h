// What a step updates with.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/optim/update_rule.h"

namespace zero3d {

class GradientReducer;

struct UpdateInputs {
  GradientReducer& gradients;
  const std::vector<GroupSettings>& groups;  ///< The settings of each optimizer group.
  std::int64_t step = 1;                     ///< The number of this applied step.
  double loss_scale = 1;                     ///< Still in the gradients.
  float gradient_factor = 1;                 ///< Unscales and clips them.
};

}  // namespace zero3d
