// Adam with decoupled (AdamW) or classic (L2) weight decay: DeepSpeed's FusedAdam and
// DeepSpeedCPUAdam in one rule.
#pragma once

#include <optional>

#include "zero3d/kernels/isa.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct AdamOptions {
  bool decoupled =
      true;  ///< p -= lr * wd * p beside the step; else g += wd * p before the moments.
  bool bias_correction = true;
  std::string name = "AdamW";       ///< As the configuration spells it, for messages.
  std::optional<kernels::Isa> isa;  ///< See choose_isa().
};

/// With t the step, c1 = 1 - beta1^t and c2 = 1 - beta2^t in double (1 without bias correction),
/// one sequence of fp32 operations, each correctly rounded, no fused multiply-add:
///   g = gradient * factor                      classic: g = g + wd * p
///   m = (m - (1 - beta1) * m) + (1 - beta1) * g
///   v = (v - (1 - beta2) * v) + (1 - beta2) * (g * g)
///   s = (lr / c1) * (m / (sqrt(v) * (1 / sqrt(c2)) + eps))
///   p = p - s                                  decoupled: p = p - (s + (lr * wd) * p)
/// States: exp_avg, exp_avg_sq, f32 or bf16. Source: DeepSpeed csrc/adam.
class Adam final : public UpdateRule {
 public:
  explicit Adam(AdamOptions options);
  std::string name() const override { return options_.name; }
  std::vector<StateSpec> states() const override;
  std::string description() const override;
  /// Throws Error(kInvalid) for betas outside [0, 1) or a step below 1.
  void update(Stream& stream, const GroupSettings& group, const StepContext& context,
              std::span<const UpdateSlice> slices) const override;
  kernels::Isa isa() const { return isa_; }

 private:
  AdamOptions options_;
  kernels::Isa isa_;
};

}  // namespace zero3d
