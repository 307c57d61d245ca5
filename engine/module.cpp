// What a block's context answers to questions that the block may not ask.
#include "zero3d/engine/module.h"

#include <utility>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

std::string named(const Block* block) {
  return block == nullptr ? "a block" : concat("block '", block->name(), "'");
}

}  // namespace

void BlockContext::throw_undeclared(std::size_t index) const {
  throw_invalid(concat(named(block_), " asks for parameter ", index, " but declares ",
                       parameters_.size(), ", counted from 0; declare it in parameters()"));
}

void BlockContext::throw_other_tile(std::size_t index) const {
  throw_invalid(concat(named(block_), " asks in tile ", tile_, " for parameter ", index,
                       ", which belongs to another; declare it for this tile, or for all"));
}

void BlockContext::throw_not_backward(std::size_t index) const {
  throw_invalid(concat(named(block_), " asks in forward about the gradient of parameter ", index,
                       "; gradients are there in backward_inputs and backward_weights only"));
}

void BlockContext::throw_early(std::size_t index) const {
  throw_invalid(concat(named(block_), " asks in backward_inputs for the gradient of parameter ",
                       index, ", declared gradient_in_weights; write it in backward_weights"));
}

std::vector<std::string> Module::mesh_problems(const GridDegrees& degrees) const {
  if (degrees.sp == 1) return {};
  return {concat("its blocks work on whole samples, and sp ", degrees.sp,
                 " would give them parts (BlockContext::sp): override Module::mesh_problems where "
                 "they heed that, or take sp 1")};
}

Tensor BlockContext::enter(Tensor x) const {
  return tp_.splits_sequence() ? all_rows(x) : std::move(x);
}

Shape BlockContext::shape_inside(Shape x) const {
  if (tp_.splits_sequence()) x[1] *= tp_.size();
  return x;
}

Tensor BlockContext::all_rows(Tensor& x) const {
  Tensor all = allocate(x.dtype(), shape_inside(x.shape()));
  tp_.gather_rows(stream(), x, all);
  read_by_others(x);
  return all;
}

void BlockContext::read_by_others(Tensor& x) const {
  Event read;
  stream().record(read);
  x.used_on(read);
}

/// For this rank's rows of `y`; `y` itself where that is all.
Tensor BlockContext::rows_that_leave(const Tensor& y) const {
  if (!tp_.splits_sequence()) return Tensor();
  Shape share = y.shape();
  if (share[1] % tp_.size() != 0)
    throw_invalid(concat(sp_.alone() ? "a sequence of " : "a part of a sequence of ", share[1],
                         " tokens cannot be split over ", tp_.size(),
                         " tensor-parallel ranks; give samples of a multiple of ",
                         tp_.size() * sp_.size(), ", or turn zero3d.sequence_parallel off"));
  share[1] /= tp_.size();
  return allocate(y.dtype(), share);
}

Tensor BlockContext::leave(Tensor y) const {
  Tensor mine = rows_that_leave(y);
  return leave(std::move(y), std::move(mine));
}

Tensor BlockContext::leave(Tensor y, Tensor mine) const {
  if (!mine.defined()) {
    tp_.sum(stream(), y);
    return y;
  }
  tp_.scatter_sums(stream(), y, mine);
  read_by_others(y);
  return mine;
}

Tensor BlockContext::leave(Tensor y, const ProductOfRows& product) const {
  constexpr std::int64_t kParts = 2;
  const std::int64_t width = y.shape().last();
  const auto rows = [width](const View& all, std::int64_t first, std::int64_t count) {
    return all.flat(first * width, count * width).reshaped({count, width});
  };
  // Rows that leave by themselves: any, or those of whole samples.
  const std::int64_t unit = tp_.splits_sequence() ? y.shape()[1] : 1;
  const std::int64_t units = y.shape().rows() / unit;
  if (tp_.alone()) {
    product(0, y.view().reshaped({unit * units, width}));
    return y;
  }
  Tensor mine = rows_that_leave(y);
  std::vector<Event> summed;
  // The same parts whether sums overlap or not: a product's bits may depend on how many rows it
  // has.
  for (std::int64_t part = 0; part < kParts; ++part) {
    const std::int64_t first = units * part / kParts, count = units * (part + 1) / kParts - first;
    if (count == 0) continue;
    const View piece = rows(y, first * unit, count * unit);
    product(first * unit, piece);
    if (!tp_.overlaps()) continue;
    if (!mine.defined()) {
      summed.push_back(tp_.sum_beside(stream(), piece));
      continue;
    }
    const std::int64_t share = mine.numel() / units;
    summed.push_back(tp_.scatter_sums_beside(
        stream(), piece.reshaped({count, unit, width}),
        mine.view().flat(first * share, count * share).reshaped({count, mine.shape()[1], width})));
  }
  if (!tp_.overlaps()) return leave(std::move(y), std::move(mine));
  for (const Event& event : summed) stream().wait(event);
  if (!mine.defined()) return y;
  read_by_others(y);
  return mine;
}

}  // namespace zero3d
