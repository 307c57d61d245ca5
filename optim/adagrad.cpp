#include "zero3d/optim/adagrad.h"

#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/optimizer.h"
#include "zero3d/optim/check.h"

namespace zero3d {

std::string Adagrad::description() const {
  return concat("Adagrad: classic weight decay (L2, added to the gradient)",
                options_.lr_decay != 0 ? concat(", lr decay ", options_.lr_decay) : "",
                ", CPU loop ", name_of(isa_));
}

void Adagrad::update(Stream& stream, const GroupSettings& group, const StepContext& context,
                     std::span<const UpdateSlice> slices) const {
  check_settings("Adagrad", group, context);
  const double lr = group.lr / (1 + static_cast<double>(context.step - 1) * options_.lr_decay);
  const kernels::AdagradConstants constants = {
      .factor = context.gradient_factor,
      .lr = narrow<float>(lr, "lr"),
      .eps = narrow<float>(group.eps, "eps"),
      .weight_decay = narrow<float>(group.weight_decay, "weight_decay")};
  kernels::adagrad(stream, slices, constants, isa_);
}

}  // namespace zero3d
