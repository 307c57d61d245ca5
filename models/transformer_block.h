// One pre-norm transformer block: x2 = x + attention(norm1(x)), y = x2 + mlp(norm2(x2)). It keeps
// what backward needs and recomputes what a pass over memory gives back (norm outputs,
// activations).
#pragma once

#include <string>

#include "zero3d/models/sublayers.h"

namespace zero3d {

/// The parts of a block, made by a family's builder; their indices refer to `parameters`.
struct TransformerParts {
  std::string name;
  ParameterList parameters;
  Norm norm1;
  Attention attention;
  Norm norm2;
  Mlp mlp;
};

/// Values: {hidden [B, T, C], rest...} -> the same; the rest passes through.
class TransformerBlock final : public Block {
 public:
  explicit TransformerBlock(TransformerParts parts) : parts_(std::move(parts)) {}

  std::string name() const override { return parts_.name; }
  std::vector<ParameterSpec> parameters() const override { return parts_.parameters.specs(); }
  Values forward(BlockContext& context, Values inputs, Saved& saved) override;
  Values backward_inputs(BlockContext& context, Values output_gradients, Saved& saved) override;
  void backward_weights(BlockContext& context, Saved& saved) override;

 private:
  /// The residual path's gradient before a norm: norm gradient of `dnormed` + `dy`. Written over
  /// `spent` when that is defined.
  Tensor norm_backward(BlockContext& context, const Norm& norm, Tensor dnormed, const ConstView& x,
                       Tensor& mean, Tensor& rstd, const ConstView& dy, Tensor spent, bool wanted);

  TransformerParts parts_;
};

}  // namespace zero3d
