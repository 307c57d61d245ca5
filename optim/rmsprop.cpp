#include "zero3d/optim/rmsprop.h"

#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/optimizer.h"
#include "zero3d/optim/check.h"

namespace zero3d {

std::vector<StateSpec> Rmsprop::states() const {
  std::vector<StateSpec> states = {{"square_avg"}};
  if (options_.has_momentum) states.push_back({"momentum_buffer"});
  if (options_.centered) states.push_back({"grad_avg"});
  return states;
}

std::string Rmsprop::description() const {
  return concat("RMSprop: classic weight decay (L2, added to the gradient), alpha ", options_.alpha,
                options_.centered ? ", centered" : "", options_.has_momentum ? ", momentum" : "",
                ", CPU loop ", name_of(isa_));
}

void Rmsprop::update(Stream& stream, const GroupSettings& group, const StepContext& context,
                     std::span<const UpdateSlice> slices) const {
  check_settings("RMSprop", group, context);
  const kernels::RmspropConstants constants = {
      .factor = context.gradient_factor,
      .lr = narrow<float>(group.lr, "lr"),
      .one_minus_alpha = static_cast<float>(1 - options_.alpha),
      .eps = narrow<float>(group.eps, "eps"),
      .weight_decay = narrow<float>(group.weight_decay, "weight_decay"),
      .momentum = narrow<float>(group.momentum, "momentum"),
      .has_momentum = options_.has_momentum,
      .centered = options_.centered};
  kernels::rmsprop(stream, slices, constants, isa_);
}

}  // namespace zero3d
