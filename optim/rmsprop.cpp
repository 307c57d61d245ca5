#include "zero3d/optim/rmsprop.h"

#include "zero3d/core/text.h"
#include "zero3d/optim/check.h"
#include "zero3d/optim/launch.h"

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
  const simd::RmspropConstants constants = {
      .factor = context.gradient_factor,
      .lr = static_cast<float>(group.lr),
      .one_minus_alpha = static_cast<float>(1 - options_.alpha),
      .eps = static_cast<float>(group.eps),
      .weight_decay = static_cast<float>(group.weight_decay),
      .momentum = static_cast<float>(group.momentum)};
  const simd::KernelTable& table = simd::kernels(isa_);
  const auto loop =
      options_.centered
          ? (options_.has_momentum ? table.rmsprop_centered_momentum : table.rmsprop_centered)
          : (options_.has_momentum ? table.rmsprop_momentum : table.rmsprop);
  launch_rule(stream, "rmsprop", {.states = states().size()}, slices, {}, loop, constants);
}

}  // namespace zero3d
