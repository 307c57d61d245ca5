#include "zero3d/optim/lion.h"

#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/optimizer.h"
#include "zero3d/optim/check.h"

namespace zero3d {

std::string Lion::description() const {
  return concat("Lion: decoupled weight decay, sign of zero is positive, CPU loop ", name_of(isa_));
}

void Lion::update(Stream& stream, const GroupSettings& group, const StepContext& context,
                  std::span<const UpdateSlice> slices) const {
  check_settings("Lion", group, context);
  check_fraction("Lion", "beta1", group.beta1);
  check_fraction("Lion", "beta2", group.beta2);
  const kernels::LionConstants constants = {
      .factor = context.gradient_factor,
      .one_minus_beta1 = static_cast<float>(1 - group.beta1),
      .one_minus_beta2 = static_cast<float>(1 - group.beta2),
      .lr = narrow<float>(group.lr, "lr"),
      .decay = narrow<float>(group.lr * group.weight_decay, "lr * weight_decay")};
  kernels::lion(stream, slices, constants, isa_);
}

}  // namespace zero3d
