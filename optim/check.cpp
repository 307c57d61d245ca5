#include "zero3d/optim/check.h"

#include <cmath>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

void check_not_negative(const std::string& rule, const char* setting, double value) {
  if (!std::isfinite(value) || value < 0)
    throw_invalid(concat(rule, ": ", setting, " must be finite and not negative, found ", value,
                         " (optimizer.params, the parameter group or the schedule sets it)"));
}

}  // namespace

void check_settings(const std::string& rule, const GroupSettings& group,
                    const StepContext& context) {
  check_not_negative(rule, "lr", group.lr);
  check_not_negative(rule, "eps", group.eps);
  check_not_negative(rule, "weight_decay", group.weight_decay);
  if (context.step < 1) throw_invalid(concat(rule, ": steps count from 1, found ", context.step));
}

void check_fraction(const std::string& rule, const char* setting, double value) {
  if (!(value >= 0 && value < 1))
    throw_invalid(concat(rule, ": ", setting, " must be at least 0 and below 1, found ", value,
                         " (a OneCycle schedule with decay_mom_rate can drive beta1 past 1)"));
}

}  // namespace zero3d
