#include "zero3d/models/tiled_linear.h"

#include <algorithm>
#include <utility>

#include "zero3d/core/multiples.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/gemm.h"

namespace zero3d {
namespace {

using kernels::ColumnRange;
using kernels::Transpose;

constexpr std::int64_t kGranule = 48;  // outputs; what products on the CPU are cut by

ColumnRange columns(const Extent& extent) { return {extent.first, extent.count}; }

/// The part of `whole` along `dim`.
ParameterSpec piece_of(const ParameterSpec& whole, int dim, const Extent& extent, int tile) {
  ParameterSpec spec = whole;
  spec.piece = {dim, extent.first, extent.count};
  spec.tile = tile;
  return spec;
}

}  // namespace

std::vector<Extent> cut_evenly(std::int64_t extent, int pieces, std::int64_t granule) {
  std::int64_t granules = ceil_div(extent, granule);
  if (granules < pieces) granule = 1, granules = extent;
  std::vector<Extent> result;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < pieces; ++i) {
    // The longer ones last: none of those that follow one is empty.
    const std::int64_t end = std::min(extent, (i + 1) * granules / pieces * granule);
    result.push_back({first, end - first});
    first = end;
  }
  return result;
}

Tensor rounded_sum(BlockContext& context, Tensor sum) {
  if (context.dtype() == DType::f32) return sum;
  Tensor y = context.allocate(sum.shape());
  kernels::convert(context.stream(), sum, y);
  return y;
}

TiledLinear::TiledLinear(Linear& linear, const ParameterList& whole, int tiles, int first_tile,
                         ParameterList& parameters)
    : input_major_(linear.input_major) {
  const ParameterSpec weight = whole.specs()[linear.weight];
  const std::optional<std::size_t> bias = linear.bias;
  for (const Extent& outputs : cut_evenly(linear.out, tiles, kGranule)) {
    Tile& tile = tiles_.emplace_back();
    tile.outputs = outputs;
    const int number = first_tile + static_cast<int>(tiles_.size()) - 1;
    if (outputs.count == 0) continue;
    linear.weight = tile.weight =
        parameters.add(piece_of(weight, input_major_ ? 1 : 0, outputs, number));
    if (!bias) continue;
    linear.bias = tile.bias = parameters.add(piece_of(whole.specs()[*bias], 0, outputs, number));
  }
}

void TiledLinear::forward(BlockContext& context, int tile, const ConstView& x,
                          const View& y) const {
  if (empty(tile)) return;
  const auto& [outputs, weight, bias] = at(tile);
  kernels::Gemm product;
  product.a = x;
  product.b = context.parameter(weight);
  product.trans_b = input_major_ ? Transpose::no : Transpose::yes;
  product.c = y;
  product.c_columns = columns(outputs);
  if (bias) product.bias = context.parameter(*bias);
  product.what = "linear forward, a tile";
  kernels::gemm(context.stream(), product);
}

void TiledLinear::backward_input(BlockContext& context, int tile, const ConstView& dy,
                                 const View& dx, bool begins) const {
  if (empty(tile)) return;
  kernels::Gemm product;
  product.a = dy;
  product.a_columns = columns(at(tile).outputs);
  product.b = context.parameter(at(tile).weight);
  product.trans_b = input_major_ ? Transpose::yes : Transpose::no;
  product.c = dx;
  product.accumulate = !begins;
  product.what = "linear input gradient, a tile";
  kernels::gemm(context.stream(), product);
}

void TiledLinear::backward_bias(BlockContext& context, int tile, const ConstView& dy) const {
  const auto& [outputs, weight, bias] = at(tile);
  if (bias && context.trains(*bias))
    kernels::column_sums(context.stream(), dy, context.write_gradient(*bias), false,
                         columns(outputs));
}

void TiledLinear::backward_weight(BlockContext& context, int tile, const ConstView& x,
                                  const ConstView& dy) const {
  if (empty(tile) || !context.trains(at(tile).weight)) return;
  const ColumnRange outputs = columns(at(tile).outputs);
  kernels::Gemm product;
  product.a = input_major_ ? x : dy;
  product.trans_a = Transpose::yes;
  product.b = input_major_ ? dy : x;
  (input_major_ ? product.b_columns : product.a_columns) = outputs;
  product.c = context.write_gradient(at(tile).weight);
  product.what = "linear weight gradient, a tile";
  kernels::gemm(context.stream(), product);
}

}  // namespace zero3d
