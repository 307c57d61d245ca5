// Linear layers, norms and dropout on the kernels.
#include "zero3d/models/layers.h"

#include <utility>

#include "zero3d/kernels/activation.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/gemm.h"

namespace zero3d {

using kernels::Transpose;

void Linear::forward(BlockContext& context, const ConstView& x, const View& y,
                     const ConstView& residual) const {
  // In 16-bit the product is rounded before the residual is added, as PyTorch does; in fp32 the
  // fused addition gives the same bits.
  const bool fused = residual.defined() && !is_16bit(y.dtype());
  kernels::Gemm product;
  product.a = x;
  product.b = context.parameter(weight);
  product.trans_b = input_major ? Transpose::no : Transpose::yes;
  product.c = y;
  if (bias && !(cut_by_inputs && context.tp().rank() > 0)) product.bias = context.parameter(*bias);
  if (fused) product.residual = residual;
  product.what = "linear forward";
  kernels::gemm(context.stream(), product);
  if (residual.defined() && !fused) kernels::add(context.stream(), residual, y);
}

void Linear::backward_input(BlockContext& context, const ConstView& dy, const View& dx,
                            bool accumulate) const {
  kernels::Gemm product;
  product.a = dy;
  product.b = context.parameter(weight);
  product.trans_b = input_major ? Transpose::yes : Transpose::no;
  product.c = dx;
  product.accumulate = accumulate;
  product.what = "linear input gradient";
  kernels::gemm(context.stream(), product);
}

void Linear::backward_bias(BlockContext& context, const ConstView& dy) const {
  if (bias && context.trains(*bias))
    kernels::column_sums(context.stream(), dy, context.write_gradient(*bias));
}

void Linear::backward_weight(BlockContext& context, const ConstView& x, const ConstView& dy) const {
  kernels::Gemm product;
  product.a = input_major ? x : dy;
  product.trans_a = Transpose::yes;
  product.b = input_major ? dy : x;
  product.c = context.write_gradient(weight);
  product.what = "linear weight gradient";
  kernels::gemm(context.stream(), product);
}

Linear declare_linear(ParameterList& parameters, const LinearOptions& options) {
  using Cut = LinearOptions::Cut;
  Linear linear;
  linear.in = options.in;
  linear.out = options.out;
  linear.input_major = options.input_major;
  linear.cut_by_inputs = options.cut == Cut::inputs;
  const SharedGradient shared =
      options.split.shares_grains ? SharedGradient::of_heads : SharedGradient::whole;

  ParameterSpec weight;
  weight.name = options.prefix + ".weight";
  weight.shape =
      options.input_major ? Shape{options.in, options.out} : Shape{options.out, options.in};
  weight.initial = normal_values(weight.name, static_cast<float>(options.stddev));
  weight.gradient_in_weights = true;
  weight.shared_gradient = shared;
  if (options.cut != Cut::none) {
    const bool outputs = options.cut == Cut::outputs;
    weight.split = options.split;
    weight.split.dim = outputs == options.input_major ? 1 : 0;
  }
  linear.weight = parameters.add(std::move(weight));
  if (!options.biased) return linear;

  ParameterSpec bias;
  bias.name = options.prefix + ".bias";
  bias.shape = Shape{options.out};
  bias.initial = constant_values(0.0f);
  if (options.cut == Cut::outputs) {  // after a cut by inputs the bias is added once, to the sum
    bias.split = options.split;
    bias.split.dim = 0;
    bias.shared_gradient = shared;
  }
  linear.bias = parameters.add(std::move(bias));
  return linear;
}

Linear declare_head(ParameterList& parameters, const std::string& name, std::int64_t width,
                    std::int64_t vocabulary, double stddev) {
  ParameterSpec weight;
  weight.name = name;
  weight.shape = Shape{vocabulary, width};
  weight.initial = normal_values(name, static_cast<float>(stddev));
  weight.split.dim = 0;
  weight.gradient_in_weights = true;
  Linear head;
  head.weight = parameters.add(std::move(weight));
  head.in = width;
  head.out = vocabulary;
  return head;
}

void Norm::forward(BlockContext& context, const ConstView& x, const View& y, const View& mean,
                   const View& rstd) const {
  const ConstView scale = context.parameter(weight);
  if (has_mean()) {
    kernels::layer_norm_forward(context.stream(), x, scale, context.parameter(*bias), eps, y, mean,
                                rstd);
  } else {
    kernels::rms_norm_forward(context.stream(), x, scale, eps, y, rstd, factor);
  }
}

void Norm::backward_input(BlockContext& context, const ConstView& dy, const ConstView& x,
                          const ConstView& mean, const ConstView& rstd, const ConstView& residual,
                          const View& dx) const {
  const ConstView scale = context.parameter(weight);
  if (has_mean()) {
    kernels::layer_norm_backward_input(context.stream(), dy, x, scale, mean, rstd, residual, dx);
  } else {
    kernels::rms_norm_backward_input(context.stream(), dy, x, scale, rstd, residual, dx, factor);
  }
}

void Norm::backward_weight(BlockContext& context, const ConstView& dy, const ConstView& x,
                           const ConstView& mean, const ConstView& rstd) const {
  if (!trains(context)) return;
  const View dweight = context.write_gradient(weight);
  if (has_mean()) {
    kernels::layer_norm_backward_weight(context.stream(), dy, x, mean, rstd, dweight,
                                        context.write_gradient(*bias));
  } else {
    kernels::rms_norm_backward_weight(context.stream(), dy, x, rstd, dweight, false, factor);
  }
}

Norm declare_layer_norm(ParameterList& parameters, const std::string& prefix, std::int64_t width,
                        double eps) {
  Norm norm = declare_rms_norm(parameters, prefix, width, eps);
  ParameterSpec bias;
  bias.name = prefix + ".bias";
  bias.shape = Shape{width};
  bias.initial = constant_values(0.0f);
  bias.shared_gradient = SharedGradient::of_rows;
  norm.bias = parameters.add(std::move(bias));
  return norm;
}

Norm declare_rms_norm(ParameterList& parameters, const std::string& prefix, std::int64_t width,
                      double eps, kernels::RmsFactor factor, SharedGradient shared) {
  ParameterSpec weight;
  weight.name = prefix + ".weight";
  weight.shape = Shape{width};
  weight.initial = constant_values(factor == kernels::RmsFactor::weight ? 1.0f : 0.0f);
  weight.shared_gradient = shared;
  Norm norm;
  norm.weight = parameters.add(std::move(weight));
  norm.eps = static_cast<float>(eps);
  norm.factor = factor;
  return norm;
}

void Dropout::apply(BlockContext& context, const ConstView& x, const ConstView& residual,
                    const View& y) const {
  const std::int64_t rows = x.shape()[1];
  kernels::dropout(context.stream(), x, p, key(context), {rows, context.first_row(rows)}, residual,
                   y);
}

}  // namespace zero3d
