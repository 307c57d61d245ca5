// What a block's context answers to questions that the block may not ask.
#include "zero3d/engine/module.h"

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

}  // namespace zero3d
