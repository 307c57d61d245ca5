// Muon (Jordan et al., 2024) as DeepSpeed has it: momentum whose matrices are orthogonalised by
// Newton-Schulz iterations. Parameters that muon_takes() refuses are updated by an Adam rule beside
// it.
#pragma once

#include <optional>

#include "zero3d/kernels/isa.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

enum class NewtonSchulz {
  gram,  ///< Iterates on the small Gram matrix, restarting once; square matrices take the standard
         ///< form.
  standard  ///< Iterates on the matrix.
};

struct MuonOptions {
  NewtonSchulz method = NewtonSchulz::gram;
  std::optional<kernels::Isa> isa;
};

/// M = b * M + (1 - b) * G; blend = (1 - b) * G + b * M; U = orthogonalise(blend);
/// p -= lr * factor * U + lr * wd * p. State: momentum_buffer.
/// orthogonalise(X): X / (|X| + 1e-7), five times X = (a + b A + c A^2) X with A = X X' (X' X and
/// from the right when rows > columns), (a, b, c) = (3.4445, -4.7750, 2.0315); then times
/// sqrt(max(1, rows / columns)). All in fp32.
class Muon final : public MatrixRule {
 public:
  explicit Muon(MuonOptions options) : options_(options), isa_(kernels::choose_isa(options.isa)) {}
  std::string name() const override { return "Muon"; }
  std::vector<StateSpec> states() const override { return {{"momentum_buffer"}}; }
  std::string description() const override;
  void blend(Stream& stream, const GroupSettings& group, const StepContext& context,
             std::span<const UpdateSlice> slices, std::span<const View> blended) const override;
  std::int64_t scratch_numel(const Shape& shape) const override;
  void orthogonalise(Stream& stream, const View& matrix, const View& scratch) const override;
  void update(Stream& stream, const GroupSettings& group, const StepContext& context,
              std::span<const UpdateSlice> slices) const override;

 private:
  MuonOptions options_;
  kernels::Isa isa_;
};

}  // namespace zero3d
