// RMSprop as torch.optim.RMSprop has it.
#pragma once

#include <optional>

#include "zero3d/kernels/isa.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct RmspropOptions {
  double alpha = 0.99;
  bool has_momentum = false;
  bool centered = false;
  std::optional<kernels::Isa> isa;
};

/// g += wd * p; s = alpha * s + (1 - alpha) * g * g; centered: a = alpha * a + (1 - alpha) * g and
/// the variance is s - a * a, else s; d = g / (sqrt(variance) + eps); with momentum b = momentum *
/// b + d and d = b; p -= lr * d. States: square_avg, then momentum_buffer and grad_avg where used.
class Rmsprop final : public UpdateRule {
 public:
  explicit Rmsprop(RmspropOptions options)
      : options_(options), isa_(kernels::choose_isa(options.isa)) {}
  std::string name() const override { return "RMSprop"; }
  std::vector<StateSpec> states() const override;
  std::string description() const override;
  void update(Stream& stream, const GroupSettings& group, const StepContext& context,
              std::span<const UpdateSlice> slices) const override;

 private:
  RmspropOptions options_;
  kernels::Isa isa_;
};

}  // namespace zero3d
