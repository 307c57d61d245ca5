#include "zero3d/optim/lamb.h"

#include <cmath>

#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/optimizer.h"
#include "zero3d/optim/check.h"

namespace zero3d {

std::string Lamb::description() const {
  return concat("Lamb: decay within the direction, trust ratio from ", options_.min_coeff, " to ",
                options_.max_coeff, ", eps ", options_.eps_inside_sqrt ? "inside" : "outside",
                " the root", options_.bias_correction ? "" : ", no bias correction", ", CPU loop ",
                name_of(isa_));
}

void Lamb::update(Stream&, const GroupSettings&, const StepContext&,
                  std::span<const UpdateSlice>) const {
  ZERO3D_CHECK(needs() == RuleNeeds::elementwise, "Lamb updates by prepare() and apply()");
}

void Lamb::prepare(Stream& stream, const GroupSettings& group, const StepContext& context,
                   std::span<const UpdateSlice> slices, std::span<const Scratch> scratch) const {
  check_settings("Lamb", group, context);
  check_fraction("Lamb", "beta1", group.beta1);
  check_fraction("Lamb", "beta2", group.beta2);
  ZERO3D_CHECK(slices.size() == scratch.size(), "one scratch per slice");
  const kernels::LambConstants constants = {
      .factor = context.gradient_factor,
      .one_minus_beta1 = static_cast<float>(1 - group.beta1),
      .one_minus_beta2 = static_cast<float>(1 - group.beta2),
      .eps = narrow<float>(group.eps, "eps"),
      .weight_decay = narrow<float>(group.weight_decay, "weight_decay"),
      .eps_inside_root = options_.eps_inside_sqrt};
  std::vector<View> directions;
  for (const Scratch& one : scratch) directions.push_back(one.direction);
  kernels::lamb_direction(stream, slices, directions, constants, isa_);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    kernels::square_sums(stream, slices[i].master, scratch[i].parameter_sums);
    kernels::square_sums(stream, scratch[i].direction, scratch[i].direction_sums);
  }
}

void Lamb::apply(Stream& stream, const GroupSettings& group, const StepContext& context,
                 std::span<const UpdateSlice> slices, std::span<const Scratch> scratch,
                 std::span<const ConstView> norms) const {
  ZERO3D_CHECK(slices.size() == scratch.size() && slices.size() == norms.size(),
               "one scratch and one pair of norms per slice");
  const auto t = static_cast<double>(context.step);
  double step_size = group.lr;
  if (options_.bias_correction)
    step_size *= std::sqrt(1 - std::pow(group.beta2, t)) / (1 - std::pow(group.beta1, t));
  std::vector<UpdateSlice> steps;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    steps.push_back({slices[i].master, scratch[i].direction, {}, slices[i].copy});
  }
  kernels::lamb_step(stream, steps, norms, {step_size, options_.min_coeff, options_.max_coeff},
                     isa_);
}

}  // namespace zero3d
