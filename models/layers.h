// Linear layers and norms of a block, forward and backward, over the parameters of its context.
// They hold indices and sizes, no tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/kernels/norm.h"

namespace zero3d {

/// A block's parameters in the order it declares them.
class ParameterList {
 public:
  std::size_t add(ParameterSpec spec) {
    specs_.push_back(std::move(spec));
    return specs_.size() - 1;
  }
  const std::vector<ParameterSpec>& specs() const { return specs_; }

 private:
  std::vector<ParameterSpec> specs_;
};

/// y = x W (+ b). Shapes: x [rows, in], y [rows, out], in any rank with that last extent; under
/// tensor parallelism what of in or out is on this rank. Cut by inputs, y is this rank's part of a
/// sum over ranks, to which the first adds the bias.
struct Linear {
  std::size_t weight = 0;
  std::optional<std::size_t> bias;
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool input_major = false;  ///< Stored [in, out] (GPT-2's Conv1D) rather than [out, in].
  bool cut_by_inputs = false;

  std::int64_t out_here(const BlockContext& context) const {
    return context.parameter(weight).shape()[input_major ? 1 : 0];
  }

  /// With `residual`: y = x W + b + residual, rounded where PyTorch rounds: after the product and
  /// after the sum.
  void forward(BlockContext& context, const ConstView& x, const View& y,
               const ConstView& residual = {}) const;
  /// dx = dy W^T; `accumulate` adds it to dx.
  void backward_input(BlockContext& context, const ConstView& dy, const View& dx,
                      bool accumulate = false) const;
  void backward_bias(BlockContext& context, const ConstView& dy) const;
  void backward_weight(BlockContext& context, const ConstView& x, const ConstView& dy) const;

  bool trains_weight(const BlockContext& context) const { return context.trains(weight); }
  bool trains(const BlockContext& context) const {
    return trains_weight(context) || (bias && context.trains(*bias));
  }
};

/// How a linear layer is declared: `prefix`.weight and, with `biased`, `prefix`.bias.
struct LinearOptions {
  std::string prefix;
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool biased = false;
  bool input_major = false;
  double stddev = 0.02;
  enum class Cut { none, outputs, inputs } cut = Cut::none;  ///< By tensor parallelism.
  TensorParallelSplit split;  ///< Of what is cut; the dim follows from `cut`.
};
Linear declare_linear(ParameterList& parameters, const LinearOptions& options);
/// The projection to the vocabulary, [vocabulary, width] under `name`: the embedding's when tied.
Linear declare_head(ParameterList& parameters, const std::string& name, std::int64_t width,
                    std::int64_t vocabulary, double stddev);

/// LayerNorm, or without a bias RMSNorm, over the last dim. Statistics are fp32 [rows]; RMSNorm has
/// no mean.
struct Norm {
  std::size_t weight = 0;
  std::optional<std::size_t> bias;
  float eps = 0;
  kernels::RmsFactor factor = kernels::RmsFactor::weight;  ///< Of RMSNorm.

  bool has_mean() const { return bias.has_value(); }
  /// Undefined statistics are not stored.
  void forward(BlockContext& context, const ConstView& x, const View& y, const View& mean,
               const View& rstd) const;
  /// Of RMSNorm, dx may be dy.
  void backward_input(BlockContext& context, const ConstView& dy, const ConstView& x,
                      const ConstView& mean, const ConstView& rstd, const ConstView& residual,
                      const View& dx) const;
  void backward_weight(BlockContext& context, const ConstView& dy, const ConstView& x,
                       const ConstView& mean, const ConstView& rstd) const;

  bool trains(const BlockContext& context) const {
    return context.trains(weight) || (bias && context.trains(*bias));
  }
};
Norm declare_layer_norm(ParameterList& parameters, const std::string& prefix, std::int64_t width,
                        double eps);
/// `shared`: of_heads for a norm of heads, within a parallel region.
Norm declare_rms_norm(ParameterList& parameters, const std::string& prefix, std::int64_t width,
                      double eps, kernels::RmsFactor factor = kernels::RmsFactor::weight,
                      SharedGradient shared = SharedGradient::of_rows);

/// Where in its block a random number is drawn; the key's layer is block * 16 + site.
enum class DropoutSite : std::uint32_t {
  embedding = 0,
  attention = 1,
  attention_out = 2,
  mlp_out = 3
};

/// Dropout at one site of one block; does nothing in evaluation or at p = 0.
struct Dropout {
  float p = 0;
  std::uint32_t layer = 0;

  Dropout() = default;
  Dropout(double probability, std::int64_t block, DropoutSite site)
      : p(static_cast<float>(probability)),
        layer(static_cast<std::uint32_t>(block) * 16 + static_cast<std::uint32_t>(site)) {}

  bool active(const BlockContext& context) const { return p > 0 && context.training(); }
  RandomKey key(const BlockContext& context) const {
    RandomKey named = context.random();
    named.layer = layer;
    return named;
  }
  /// y = dropout(x) (+ residual). x: [B, seq, width], outside parallel regions. Backward is the
  /// same on dy.
  void apply(BlockContext& context, const ConstView& x, const ConstView& residual,
             const View& y) const;
};

}  // namespace zero3d
