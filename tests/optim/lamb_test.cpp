// LAMB: two passes with whole-parameter norms in between, beside the formula in double; a parameter
// in several slices gives the bits of one in a single slice.
#include "zero3d/optim/lamb.h"

#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/optim/make_rule.h"
#include "zero3d/tests/optim/rig.h"

namespace zero3d {
namespace {

using test::Parameter;
using test::random_values;
using test::Rig;

/// Plays the engine: pass 1 on every slice, sums over them in order, pass 2.
class LambRun {
 public:
  LambRun(Rig& rig, const TensorNormRule& rule, Parameter& parameter, std::int64_t numel,
          std::int64_t part)
      : rig_(rig),
        rule_(rule),
        norms_(rig.device().memory(), kNoStream, DType::f64, Shape{2}, Category::other) {
    for (std::int64_t begin = 0; begin < numel; begin += part) {
      const std::int64_t count = std::min(part, numel - begin);
      slices_.push_back(parameter.part(begin, count));
      TensorNormRule::Scratch scratch;
      scratch.direction = add(DType::f32, count);
      scratch.parameter_sums = add(DType::f64, (count + 1023) / 1024);
      scratch.direction_sums = add(DType::f64, (count + 1023) / 1024);
      scratch_.push_back(scratch);
    }
  }

  void step(const GroupSettings& group, const StepContext& context) {
    rule_.prepare(rig_.stream(), group, context, slices_, scratch_);
    rig_.stream().synchronize();
    double sums[2] = {0, 0};
    for (const auto& scratch : scratch_) {
      sums[0] += total(scratch.parameter_sums);
      sums[1] += total(scratch.direction_sums);
    }
    test::upload(rig_.stream(), norms_,
                 [&](const View& host) { std::copy(sums, sums + 2, host.as<double>()); });
    const std::vector<ConstView> norms(slices_.size(), norms_);
    rule_.apply(rig_.stream(), group, context, slices_, scratch_, norms);
    rig_.stream().synchronize();
  }

 private:
  double total(const View& sums) {
    const Readback copy = test::read_back(rig_.stream(), sums);
    const double* values = copy.wait().as<double>();
    double sum = 0;
    for (std::int64_t i = 0; i < sums.numel(); ++i) sum += values[i];
    return sum;
  }
  View add(DType dtype, std::int64_t count) {
    tensors_.emplace_back(rig_.device().memory(), kNoStream, dtype, Shape{count}, Category::other);
    return tensors_.back().view();
  }

  Rig& rig_;
  const TensorNormRule& rule_;
  std::vector<Tensor> tensors_;
  Tensor norms_;
  std::vector<UpdateSlice> slices_;
  std::vector<TensorNormRule::Scratch> scratch_;
};

struct Reference {
  std::vector<double> w, m, v;

  explicit Reference(const std::vector<float>& initial)
      : w(initial.begin(), initial.end()), m(w.size()), v(w.size()) {}

  void step(const GroupSettings& s, const LambOptions& o, const std::vector<float>& gradient,
            int t) {
    std::vector<double> direction(w.size());
    double w_squares = 0, d_squares = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i];
      m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
      v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
      direction[i] =
          m[i] / (o.eps_inside_sqrt ? std::sqrt(v[i] + s.eps) : std::sqrt(v[i]) + s.eps) +
          s.weight_decay * w[i];
      w_squares += w[i] * w[i];
      d_squares += direction[i] * direction[i];
    }
    double ratio = 1;
    if (w_squares != 0 && d_squares != 0)
      ratio = std::clamp(std::sqrt(w_squares) / std::sqrt(d_squares), o.min_coeff, o.max_coeff);
    double lr = s.lr;
    if (o.bias_correction) lr *= std::sqrt(1 - std::pow(s.beta2, t)) / (1 - std::pow(s.beta1, t));
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= lr * ratio * direction[i];
  }
};

std::vector<float> run(const LambOptions& options, const GroupSettings& group, std::int64_t part,
                       const std::vector<float>& initial, Reference* reference) {
  const Lamb rule(options);
  const auto numel = static_cast<std::int64_t>(initial.size());
  Rig rig(2);
  Parameter parameter(rig, rule, initial);
  LambRun lamb(rig, rule, parameter, numel, part);
  for (int t = 1; t <= 10; ++t) {
    const std::vector<float> gradient = random_values(numel, static_cast<unsigned>(t));
    parameter.set_gradient(gradient);
    lamb.step(group, {t, 1.0f});
    if (reference) reference->step(group, options, gradient, t);
  }
  return parameter.master();
}

TEST(Lamb, FollowsTheFormulaWhateverTheSlices) {
  std::vector<float> initial = random_values(5000, 77);
  for (float& value : initial) value += value < 0 ? -0.1f : 0.1f;
  GroupSettings group;
  group.weight_decay = 0.01;
  LambOptions capped, inside;
  capped.max_coeff = 0.05;
  capped.bias_correction = false;
  inside.eps_inside_sqrt = true;
  for (const LambOptions& options : {LambOptions{}, capped, inside}) {
    Reference reference(initial);
    const std::vector<float> whole = run(options, group, 5000, initial, &reference);
    for (std::size_t i = 0; i < whole.size(); ++i)
      ASSERT_NEAR(whole[i], reference.w[i], 3e-6 * std::max(std::abs(reference.w[i]), 0.1)) << i;
    EXPECT_EQ(whole, run(options, group, 2048, initial, nullptr));
  }
}

TEST(Lamb, CannotBeUpdatedInOnePass) {
  const Lamb rule(LambOptions{});
  EXPECT_EQ(rule.needs(), RuleNeeds::tensor_norms);
  Rig rig;
  Parameter parameter(rig, rule, {1.0f});
  EXPECT_THROW(test::step(rig, rule, {}, 1, parameter.slice()), Error);
}

}  // namespace
}  // namespace zero3d
