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

void BlockContext::throw_not_backward(std::size_t index) const {
  throw_invalid(concat(named(block_), " asks in forward about the gradient of parameter ", index,
                       "; gradients are there in backward_inputs and backward_weights only"));
}

void BlockContext::throw_early(std::size_t index) const {
  throw_invalid(concat(named(block_), " asks in backward_inputs for the gradient of parameter ",
                       index, ", declared gradient_in_weights; write it in backward_weights"));
}

Tensor BlockContext::enter(Tensor x) const {
  return tp_.splits_sequence() ? all_rows(x) : std::move(x);
}

Shape BlockContext::shape_inside(Shape x) const {
  if (tp_.splits_sequence()) x[1] *= tp_.size();
  return x;
}

Tensor BlockContext::all_rows(const ConstView& x) const {
  Tensor all = allocate(x.dtype(), shape_inside(x.shape()));
  tp_.gather_rows(stream(), x, all);
  return all;
}

Tensor BlockContext::leave(Tensor y) const {
  if (!tp_.splits_sequence()) {
    tp_.sum(stream(), y);
    return y;
  }
  Shape share = y.shape();
  if (share[1] % tp_.size() != 0)
    throw_invalid(concat("a sequence of ", share[1], " tokens cannot be split over ", tp_.size(),
                         " tensor-parallel ranks; give samples of a multiple of ", tp_.size(),
                         ", or turn sequence_parallel off"));
  share[1] /= tp_.size();
  Tensor mine = allocate(y.dtype(), share);
  tp_.scatter_sums(stream(), y, mine);
  return mine;
}

}  // namespace zero3d
