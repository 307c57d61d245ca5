#include "zero3d/optim/sgd.h"

#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/optimizer.h"
#include "zero3d/optim/check.h"

namespace zero3d {

std::vector<StateSpec> Sgd::states() const {
  if (!options_.has_momentum) return {};
  return {{"momentum_buffer"}};
}

std::string Sgd::description() const {
  return concat("SGD: classic weight decay (L2, added to the gradient)",
                options_.has_momentum ? ", momentum" : "", options_.nesterov ? " (Nesterov)" : "",
                ", CPU loop ", name_of(isa_));
}

void Sgd::update(Stream& stream, const GroupSettings& group, const StepContext& context,
                 std::span<const UpdateSlice> slices) const {
  check_settings("SGD", group, context);
  // The buffer starts as the first gradient, undampened; it is zero before.
  const double take = context.step == 1 ? 1 : 1 - options_.dampening;
  const kernels::SgdConstants constants = {
      .factor = context.gradient_factor,
      .lr = narrow<float>(group.lr, "lr"),
      .weight_decay = narrow<float>(group.weight_decay, "weight_decay"),
      .momentum = narrow<float>(group.momentum, "momentum"),
      .take = narrow<float>(take, "dampening"),
      .nesterov = options_.nesterov,
      .has_momentum = options_.has_momentum};
  kernels::sgd(stream, slices, constants, isa_);
}

}  // namespace zero3d
