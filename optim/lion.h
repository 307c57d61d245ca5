// Lion (Chen et al., 2023) as DeepSpeed's CPU Lion has it.
#pragma once

#include <optional>

#include "zero3d/kernels/isa.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

/// c = beta1 * m + (1 - beta1) * g; p -= lr * sign(c) + lr * wd * p; m = beta2 * m + (1 - beta2) *
/// g. sign(0) = +1 on every device (DeepSpeed's CUDA kernel takes it as -1). State: exp_avg.
class Lion final : public UpdateRule {
 public:
  explicit Lion(std::optional<kernels::Isa> isa = std::nullopt) : isa_(kernels::choose_isa(isa)) {}
  std::string name() const override { return "Lion"; }
  std::vector<StateSpec> states() const override { return {{"exp_avg", true}}; }
  std::string description() const override;
  void update(Stream& stream, const GroupSettings& group, const StepContext& context,
              std::span<const UpdateSlice> slices) const override;

 private:
  kernels::Isa isa_;
};

}  // namespace zero3d
