#include "zero3d/optim/adam.h"

#include <cmath>

#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/optimizer.h"
#include "zero3d/optim/check.h"

namespace zero3d {

Adam::Adam(AdamOptions options)
    : options_(std::move(options)), isa_(kernels::choose_isa(options_.isa)) {}

std::vector<StateSpec> Adam::states() const { return {{"exp_avg", true}, {"exp_avg_sq", true}}; }

std::string Adam::description() const {
  return concat(options_.name, ": ",
                options_.decoupled ? "decoupled weight decay (AdamW)"
                                   : "classic weight decay (L2, added to the gradient)",
                options_.bias_correction ? "" : ", no bias correction", ", CPU loop ",
                name_of(isa_));
}

void Adam::update(Stream& stream, const GroupSettings& group, const StepContext& context,
                  std::span<const UpdateSlice> slices) const {
  check_settings(options_.name, group, context);
  check_fraction(options_.name, "beta1", group.beta1);
  check_fraction(options_.name, "beta2", group.beta2);
  const auto t = static_cast<double>(context.step);
  const double c1 = options_.bias_correction ? 1 - std::pow(group.beta1, t) : 1;
  const double c2 = options_.bias_correction ? 1 - std::pow(group.beta2, t) : 1;
  kernels::AdamConstants constants;
  constants.factor = context.gradient_factor;
  constants.one_minus_beta1 = static_cast<float>(1 - group.beta1);
  constants.one_minus_beta2 = static_cast<float>(1 - group.beta2);
  constants.inverse_root_correction2 = static_cast<float>(1 / std::sqrt(c2));
  constants.eps = narrow<float>(group.eps, "eps");
  constants.step_size = narrow<float>(group.lr / c1, "lr");
  constants.decay = narrow<float>(
      options_.decoupled ? group.lr * group.weight_decay : group.weight_decay, "weight_decay");
  constants.decoupled = options_.decoupled;
  kernels::adam(stream, slices, constants, isa_);
}

}  // namespace zero3d
