#include "zero3d/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/gemm.h"
#include "zero3d/kernels/newton_schulz.h"
#include "zero3d/kernels/optimizer.h"
#include "zero3d/optim/check.h"

namespace zero3d {
namespace {

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr int kIterations = 5;
/// The Gram form recomputes its product from the matrix before this iteration: errors in it grow.
constexpr int kRestart = 2;

/// A matrix and where its Newton-Schulz iteration keeps its products.
struct Workspace {
  std::int64_t rows, columns, small;
  bool wide;  ///< rows <= columns: products are X X' and multiply from the left.
  View x, y;  ///< [rows, columns]; the iteration goes back and forth.
  View gram, polynomial, total, product;  ///< [small, small]; the last two for the Gram form only.
};

std::pair<std::int64_t, std::int64_t> matrix_dims(const Shape& shape) {
  ZERO3D_CHECK(shape.rank() >= 2, "only matrices can be orthogonalised");
  return {shape[0], shape[0] == 0 ? 0 : shape.numel() / shape[0]};
}

/// By flops: iterations on the small matrix pay when the other dim is more than 1.5 times as long.
bool takes_gram_form(NewtonSchulz method, std::int64_t rows, std::int64_t columns) {
  return method == NewtonSchulz::gram && 2 * std::max(rows, columns) > 3 * std::min(rows, columns);
}

void multiply(Stream& stream, const ConstView& a, kernels::Transpose trans_a, const ConstView& b,
              kernels::Transpose trans_b, const View& c) {
  kernels::Gemm gemm;
  gemm.a = a;
  gemm.trans_a = trans_a;
  gemm.b = b;
  gemm.trans_b = trans_b;
  gemm.c = c;
  gemm.what = "muon product";
  kernels::gemm(stream, gemm);
}

void multiply(Stream& stream, const ConstView& a, const ConstView& b, const View& c) {
  multiply(stream, a, kernels::Transpose::no, b, kernels::Transpose::no, c);
}

/// gram = X X' or X' X.
void form_gram(Stream& stream, const Workspace& w, const View& x) {
  using kernels::Transpose;
  multiply(stream, x, w.wide ? Transpose::no : Transpose::yes, x,
           w.wide ? Transpose::yes : Transpose::no, w.gram);
}

/// to = factor X or X factor, with a factor of the small dim.
void apply_factor(Stream& stream, const Workspace& w, const View& factor, const View& x,
                  const View& to) {
  multiply(stream, w.wide ? ConstView(factor) : ConstView(x),
           w.wide ? ConstView(x) : ConstView(factor), to);
}

/// polynomial = a + b gram + c gram^2.
void form_polynomial(Stream& stream, const Workspace& w) {
  multiply(stream, w.gram, w.gram, w.polynomial);
  kernels::matrix_polynomial(stream, w.gram, w.polynomial, kA, kB, kC);
}

/// Returns where the result lies.
View iterate_standard(Stream& stream, const Workspace& w) {
  View x = w.x, y = w.y;
  for (int k = 0; k < kIterations; ++k) {
    form_gram(stream, w, x);
    form_polynomial(stream, w);
    apply_factor(stream, w, w.polynomial, x, y);
    std::swap(x, y);
  }
  return x;
}

/// All iterates are polynomials in the first Gram matrix times X: `total` collects the product of
/// the factors.
View iterate_gram(Stream& stream, const Workspace& w) {
  View x = w.x, y = w.y, total = w.total, product = w.product;
  form_gram(stream, w, x);
  for (int k = 0; k < kIterations; ++k) {
    if (k == kRestart) {
      apply_factor(stream, w, total, x, y);
      std::swap(x, y);
      form_gram(stream, w, x);
    }
    form_polynomial(stream, w);
    if (k == 0 || k == kRestart) {
      kernels::rescale(stream, w.polynomial, total, 1.0f, false);
    } else {
      multiply(stream, w.polynomial, total, product);
      std::swap(total, product);
    }
    if (k + 1 == kIterations || k + 1 == kRestart) continue;
    multiply(stream, w.polynomial, w.gram, product);
    multiply(stream, product, w.polynomial, w.gram);
  }
  apply_factor(stream, w, total, x, y);
  return y;
}

}  // namespace

std::string Muon::description() const {
  return concat("Muon: decoupled weight decay, Newton-Schulz in fp32, ",
                options_.method == NewtonSchulz::gram ? "Gram" : "standard", " form, CPU loop ",
                name_of(isa_));
}

void Muon::blend(Stream& stream, const GroupSettings& group, const StepContext& context,
                 std::span<const UpdateSlice> slices, std::span<const View> blended) const {
  check_settings("Muon", group, context);
  check_fraction("Muon", "momentum", group.momentum);
  const kernels::BlendConstants constants = {
      .factor = context.gradient_factor,
      .momentum = narrow<float>(group.momentum, "momentum"),
      .one_minus_momentum = static_cast<float>(1 - group.momentum)};
  for (const View& view : blended)
    ZERO3D_CHECK(view.dtype() == DType::f32, "what is orthogonalised is fp32");
  kernels::muon_blend(stream, slices, blended, constants, isa_);
}

std::int64_t Muon::scratch_numel(const Shape& shape) const {
  const auto [rows, columns] = matrix_dims(shape);
  const std::int64_t small = std::min(rows, columns);
  const std::int64_t squares = takes_gram_form(options_.method, rows, columns) ? 4 : 2;
  return rows * columns + squares * small * small;
}

void Muon::orthogonalise(Stream& stream, const View& matrix, const View& scratch) const {
  const auto [rows, columns] = matrix_dims(matrix.shape());
  ZERO3D_CHECK(matrix.dtype() == DType::f32 && scratch.dtype() == DType::f32,
               "orthogonalisation is in fp32");
  ZERO3D_CHECK(scratch.numel() >= scratch_numel(matrix.shape()), "scratch_numel() elements");
  if (rows * columns == 0) return;
  const std::int64_t small = std::min(rows, columns);
  const bool gram_form = takes_gram_form(options_.method, rows, columns);
  std::int64_t used = 0;
  const auto carve = [&](const Shape& shape) {
    used += shape.numel();
    return scratch.flat(used - shape.numel(), shape.numel()).reshaped(shape);
  };
  Workspace w;
  w.rows = rows;
  w.columns = columns;
  w.small = small;
  w.wide = rows <= columns;
  w.x = matrix.reshaped({rows, columns});
  w.y = carve({rows, columns});
  w.gram = carve({small, small});
  w.polynomial = carve({small, small});
  if (gram_form) {
    w.total = carve({small, small});
    w.product = carve({small, small});
  }
  kernels::rescale(stream, w.x, w.x, 1.0f, true);
  const View result = gram_form ? iterate_gram(stream, w) : iterate_standard(stream, w);
  const double aspect = static_cast<double>(rows) / static_cast<double>(columns);
  kernels::rescale(stream, result, w.x, static_cast<float>(std::sqrt(std::max(1.0, aspect))),
                   false);
}

void Muon::update(Stream& stream, const GroupSettings& group, const StepContext& context,
                  std::span<const UpdateSlice> slices) const {
  check_settings("Muon", group, context);
  const kernels::DescentConstants constants = {
      .rate = narrow<float>(group.lr * static_cast<double>(context.gradient_factor), "lr"),
      .decay = narrow<float>(group.lr * group.weight_decay, "lr * weight_decay")};
  kernels::descent(stream, slices, constants, isa_);
}

}  // namespace zero3d
