// Stochastic gradient descent as torch.optim.SGD has it.
#pragma once

#include <optional>

#include "zero3d/kernels/isa.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct SgdOptions {
  bool has_momentum = false;  ///< Keeps a momentum buffer: momentum != 0 at the start.
  double dampening = 0;
  bool nesterov = false;
  std::optional<kernels::Isa> isa;
};

/// g += wd * p; with momentum: b = momentum * b + (1 - dampening) * g (b = g at step 1), then g =
/// b, or g += momentum * b with nesterov; p -= lr * g. State: momentum_buffer, if any.
class Sgd final : public UpdateRule {
 public:
  explicit Sgd(SgdOptions options) : options_(options), isa_(kernels::choose_isa(options.isa)) {}
  std::string name() const override { return "SGD"; }
  std::vector<StateSpec> states() const override;
  std::string description() const override;
  void update(Stream& stream, const GroupSettings& group, const StepContext& context,
              std::span<const UpdateSlice> slices) const override;

 private:
  SgdOptions options_;
  kernels::Isa isa_;
};

}  // namespace zero3d
