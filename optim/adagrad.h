// Adagrad as torch's (device) and DeepSpeed's CPU class have it; the formula is one.
#pragma once

#include <optional>

#include "zero3d/core/narrow.h"
#include "zero3d/kernels/isa.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct AdagradOptions {
  double lr_decay = 0;
  double initial_accumulator_value = 0;
  std::string state_name = "sum";  ///< torch's; DeepSpeed's CPU class says "exp_avg_sq".
  bool may_be_bf16 = false;        ///< DeepSpeed's CPU class.
  std::optional<kernels::Isa> isa;
};

/// g += wd * p; sum += g * g; p -= lr / (1 + (t - 1) * lr_decay) * (g / (sqrt(sum) + eps)).
class Adagrad final : public UpdateRule {
 public:
  explicit Adagrad(AdagradOptions options)
      : options_(std::move(options)), isa_(kernels::choose_isa(options_.isa)) {}
  std::string name() const override { return "Adagrad"; }
  std::vector<StateSpec> states() const override {
    return {{options_.state_name, options_.may_be_bf16,
             narrow<float>(options_.initial_accumulator_value, "initial_accumulator_value")}};
  }
  std::string description() const override;
  void update(Stream& stream, const GroupSettings& group, const StepContext& context,
              std::span<const UpdateSlice> slices) const override;

 private:
  AdagradOptions options_;
  kernels::Isa isa_;
};

}  // namespace zero3d
