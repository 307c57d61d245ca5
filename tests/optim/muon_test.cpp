// Muon: both forms of the orthogonalisation beside a plain double iteration, singular values near
// one, the momentum blend, and which parameters it takes.
#include "zero3d/optim/muon.h"

#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/optim/make_rule.h"
#include "zero3d/tests/optim/rig.h"

namespace zero3d {
namespace {

using test::Parameter;
using test::random_values;
using test::Rig;

struct Matrix {
  std::int64_t rows, columns;
  std::vector<double> values;
  double& at(std::int64_t r, std::int64_t c) {
    return values[static_cast<std::size_t>(r * columns + c)];
  }
  double at(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * columns + c)];
  }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, std::vector<double>(static_cast<std::size_t>(a.rows * b.columns))};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t k = 0; k < a.columns; ++k)
      for (std::int64_t j = 0; j < b.columns; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows, std::vector<double>(a.values.size())};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  return t;
}

/// As DeepSpeed writes it: X = a X + (b A + c A A) X on the wide form, five times.
Matrix reference(const Matrix& gradient) {
  const bool tall = gradient.rows > gradient.columns;
  Matrix x = tall ? transposed(gradient) : gradient;
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  for (double& value : x.values) value /= std::sqrt(squares) + 1e-7;
  for (int k = 0; k < 5; ++k) {
    const Matrix a = product(x, transposed(x));
    Matrix b = product(a, a);
    for (std::size_t i = 0; i < b.values.size(); ++i)
      b.values[i] = -4.7750 * a.values[i] + 2.0315 * b.values[i];
    const Matrix bx = product(b, x);
    for (std::size_t i = 0; i < x.values.size(); ++i)
      x.values[i] = 3.4445 * x.values[i] + bx.values[i];
  }
  const double ratio = static_cast<double>(gradient.rows) / static_cast<double>(gradient.columns);
  for (double& value : x.values) value *= std::sqrt(std::max(1.0, ratio));
  return tall ? transposed(x) : x;
}

std::vector<float> orthogonalise(const Muon& rule, const Shape& shape,
                                 const std::vector<float>& values, int threads = 1) {
  Rig rig(threads);
  const Tensor matrix(rig.device().memory(), kNoStream, DType::f32, shape, Category::other);
  const Tensor scratch(rig.device().memory(), kNoStream, DType::f32,
                       Shape{rule.scratch_numel(shape)}, Category::other);
  rig.write(matrix.view(), values);
  rule.orthogonalise(rig.stream(), matrix.view(), scratch.view());
  return rig.read(matrix.view());
}

TEST(Muon, OrthogonalisesAsTheFormulaInBothForms) {
  const Shape shapes[] = {{1, 1},   {1, 7},   {7, 1},   {16, 16},    {24, 31},
                          {16, 64}, {64, 16}, {13, 97}, {8, 4, 3, 3}};
  for (const NewtonSchulz method : {NewtonSchulz::gram, NewtonSchulz::standard})
    for (const Shape& shape : shapes) {
      const Muon rule({.method = method});
      const std::vector<float> values = random_values(shape.numel(), 3, 0.02);
      const Matrix expected =
          reference({shape[0], shape.numel() / shape[0], {values.begin(), values.end()}});
      const std::vector<float> found = orthogonalise(rule, shape, values);
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected.values[i], 2e-4) << to_string(shape) << " element " << i;
      EXPECT_EQ(found, orthogonalise(rule, shape, values, 2)) << "threads change bits";
    }
}

TEST(Muon, SingularValuesComeNearOne) {
  const Shape shape{24, 96};
  const std::vector<float> found = orthogonalise(Muon({}), shape, random_values(shape.numel(), 5));
  const Matrix x{24, 96, {found.begin(), found.end()}};
  const Matrix gram = product(x, transposed(x));
  // Squares of singular values: the quintic leaves them between 0.68 and 1.13.
  for (std::int64_t i = 0; i < 24; ++i) {
    EXPECT_GT(gram.at(i, i), 0.4);
    EXPECT_LT(gram.at(i, i), 1.4);
  }
}

TEST(Muon, ScaleOfTheGradientDoesNotMatterAndZeroStaysZero) {
  const Shape shape{16, 48};
  std::vector<float> values = random_values(shape.numel(), 5);
  const std::vector<float> one = orthogonalise(Muon({}), shape, values);
  for (float& value : values) value *= 1024;
  const std::vector<float> large = orthogonalise(Muon({}), shape, values);
  for (std::size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(one[i], large[i], 1e-5);
  const std::vector<float> zero(static_cast<std::size_t>(shape.numel()), 0.0f);
  EXPECT_EQ(orthogonalise(Muon({}), shape, zero), zero);
}

TEST(Muon, BlendsTheMomentumAndStepsByTheOrthogonalisedGradient) {
  OptimizerChoice choice;
  choice.type = "muon";
  choice.params = {{"lr", 0.02}, {"momentum", 0.95}, {"weight_decay", 0.01}};
  const OptimizerRules rules = make_update_rule(choice);
  const auto& rule = dynamic_cast<const MatrixRule&>(*rules.rule);
  EXPECT_EQ(rule.needs(), RuleNeeds::whole_matrices);
  const std::int64_t numel = 1031;
  Rig rig;
  const std::vector<float> initial = random_values(numel, 1);
  Parameter parameter(rig, rule, initial);
  std::vector<double> w(initial.begin(), initial.end()), momentum(w.size());
  for (int step = 1; step <= 3; ++step) {
    const std::vector<float> gradient = random_values(numel, static_cast<unsigned>(step + 1));
    parameter.set_gradient(gradient);
    const UpdateSlice slices[] = {parameter.slice()};
    const View blended[] = {parameter.gradient()};  // in place
    rule.blend(rig.stream(), rules.settings, {step, 0.5f}, slices, blended);
    const std::vector<float> blend = rig.read(parameter.gradient());
    rule.update(rig.stream(), rules.settings, {step, 0.25f}, slices);
    for (std::size_t i = 0; i < w.size(); ++i) {
      momentum[i] = 0.95 * momentum[i] + 0.05 * 0.5 * gradient[i];
      const double expected = 0.05 * 0.5 * gradient[i] + 0.95 * momentum[i];
      ASSERT_NEAR(blend[i], expected, 1e-6) << i;
      w[i] = w[i] * (1 - 0.02 * 0.01) - 0.02 * 0.25 * expected;
    }
  }
  const std::vector<float> master = parameter.master();
  for (std::size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(master[i], w[i], 1e-6) << i;
}

TEST(Muon, TakesMatricesThatAreNoEmbeddings) {
  EXPECT_TRUE(muon_takes("transformer.h.0.attn.c_attn.weight", {16, 48}));
  EXPECT_TRUE(muon_takes("conv.weight", {8, 4, 3, 3}));
  EXPECT_TRUE(muon_takes("transformer.wte.weight", {257, 16}));
  EXPECT_FALSE(muon_takes("transformer.h.0.ln_1.weight", {16}));
  EXPECT_FALSE(muon_takes("model.embed_tokens.weight", {257, 16}));
  EXPECT_FALSE(muon_takes("model.Embedding.weight", {257, 16}));
  EXPECT_FALSE(muon_takes("LM_Head.weight", {257, 16}));
}

}  // namespace
}  // namespace zero3d
