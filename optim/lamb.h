// LAMB (You et al., 2020) as DeepSpeed's FusedLamb has it: Adam's direction, scaled per parameter
// by a trust ratio.
#pragma once

#include <optional>

#include "zero3d/kernels/isa.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct LambOptions {
  bool bias_correction = true;
  bool eps_inside_sqrt = false;
  double max_coeff = 10.0;
  double min_coeff = 0.01;
  std::optional<kernels::Isa> isa;
};

/// m = beta1 * m + (1 - beta1) * g; v likewise of g * g;
/// d = m / (sqrt(v) + eps) + wd * p           eps_inside_sqrt: m / sqrt(v + eps) + wd * p
/// ratio = |p| / |d|, held to [min_coeff, max_coeff]; 1 when either norm is 0
/// p -= lr * sqrt(c2) / c1 * ratio * d        c1, c2: Adam's bias corrections, 1 without
/// States: exp_avg, exp_avg_sq.
class Lamb final : public TensorNormRule {
 public:
  explicit Lamb(LambOptions options) : options_(options), isa_(kernels::choose_isa(options.isa)) {}
  std::string name() const override { return "Lamb"; }
  std::vector<StateSpec> states() const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }
  std::string description() const override;
  void prepare(Stream& stream, const GroupSettings& group, const StepContext& context,
               std::span<const UpdateSlice> slices,
               std::span<const Scratch> scratch) const override;
  void apply(Stream& stream, const GroupSettings& group, const StepContext& context,
             std::span<const UpdateSlice> slices, std::span<const Scratch> scratch,
             std::span<const ConstView> norms) const override;
  /// Throws Error(kInternal): see prepare() and apply().
  void update(Stream& stream, const GroupSettings& group, const StepContext& context,
              std::span<const UpdateSlice> slices) const override;

 private:
  LambOptions options_;
  kernels::Isa isa_;
};

}  // namespace zero3d
