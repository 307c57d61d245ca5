// The step of one rank as data: a list of operations in the order in which the host enqueues them.
// Pure functions make it and plan over it (gathers, gradient buckets, activations); BlockRunner
// executes it. Where the model is a pipeline's, the list is that of one stage
// (pipeline/stage_plan).
#pragma once

#include <span>
#include <vector>

namespace zero3d {

enum class OpKind {
  load_batch,         ///< Tokens and targets of the micro-batch go to the device.
  forward,            ///< Of one block.
  loss_gradient,      ///< The loss is counted, and its gradient becomes the last block's.
  backward,           ///< Both halves of one block's backward.
  backward_inputs,    ///< The first half: gradients of the block's inputs.
  backward_weights,   ///< The second: the weight gradients that are still to be made.
  recompute,          ///< Forward of one block once more, now keeping what its backward needs.
  fetch_inputs,       ///< Inputs of one block that forward kept on the host begin to come back.
  receive_values,     ///< What the first block of a chunk is given begins to come.
  send_values,        ///< What its last block gave goes to the next stage.
  receive_gradients,  ///< The same of gradients, on their way back.
  send_gradients,
};

/// What a forward operation leaves for what follows, beside the values for the next block.
enum class Keep {
  for_backward,    ///< What the block's backward needs.
  inputs,          ///< A copy of its inputs: recompute begins from them.
  inputs_on_host,  ///< The same in pinned host memory: fetch_inputs comes before recompute.
  nothing,         ///< recompute gets its inputs from recompute of the block before.
};

struct Op {
  OpKind kind = OpKind::forward;
  int chunk = 0;  ///< Of the blocks, where a rank runs several stages of a pipeline.
  int block = 0;
  int tile = 0;  ///< Of the block, where it is cut.
  int micro_batch = 0;
  Keep keep = Keep::for_backward;  ///< Of forward alone.
  friend bool operator==(const Op&, const Op&) = default;
};

constexpr bool keeps_inputs(Keep keep) {
  return keep == Keep::inputs || keep == Keep::inputs_on_host;
}

constexpr Op forward_of(int block, int micro_batch = 0) {
  return {.kind = OpKind::forward, .block = block, .micro_batch = micro_batch};
}
constexpr Op backward_of(int block, int micro_batch = 0) {
  return {.kind = OpKind::backward, .block = block, .micro_batch = micro_batch};
}
constexpr Op recompute_of(int block, int micro_batch = 0) {
  return {.kind = OpKind::recompute, .block = block, .micro_batch = micro_batch};
}
constexpr Op fetch_inputs_of(int block, int micro_batch = 0) {
  return {.kind = OpKind::fetch_inputs, .block = block, .micro_batch = micro_batch};
}

/// The first of a block's operations that may write its gradients.
constexpr bool begins_gradients(OpKind kind) {
  return kind == OpKind::backward || kind == OpKind::backward_inputs;
}
/// The operation after which they are all written.
constexpr bool ends_gradients(OpKind kind) {
  return kind == OpKind::backward || kind == OpKind::backward_weights;
}
constexpr bool is_backward(OpKind kind) { return begins_gradients(kind) || ends_gradients(kind); }
constexpr bool is_transfer(OpKind kind) { return kind >= OpKind::receive_values; }
constexpr bool uses_parameters(OpKind kind) {
  return kind == OpKind::forward || kind == OpKind::recompute || is_backward(kind);
}

/// Blocks of a rank that follow each other in the model.
struct Chunk {
  int begin = 0;  ///< Of the rank's blocks.
  int end = 0;
  int first_block = 0;      ///< What `begin` is in the model.
  int from = -1;            ///< The stage that its values come from; -1: it begins the model.
  int to = -1;              ///< The stage that they go to; -1: it ends the model.
  bool backward = true;     ///< A block from here down trains.
  bool gives_back = false;  ///< And one below here: gradients go to `from`.
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

/// The blocks that one rank runs, numbered from 0: a whole model, or the chunks of a pipeline's
/// stage, in the model's order.
struct StageBlocks {
  int blocks = 0;
  int backward_down_to = 0;  ///< Backward stops at this block: those below are frozen, and keep
                             ///< nothing for it.
  int stage = 0;
  std::vector<Chunk> chunks = {};  ///< Empty: one, the whole model.

  std::vector<Chunk> all_chunks() const;
  const Chunk& chunk(int index) const { return chunks[static_cast<std::size_t>(index)]; }
  int chunk_of(int block) const;
  /// Its number in the model.
  int block_in_model(int block) const;
  bool ends_model() const;
  /// Something below the block trains.
  bool wants_input_gradient(int block) const;
};

/// Forward, then backward, of one micro-batch after the other.
std::vector<Op> plan_step(const StageBlocks& stage, int micro_batches);
/// Forward of one micro-batch alone.
std::vector<Op> plan_evaluation(const StageBlocks& stage);

/// Throws Error(kInvalid), naming the operation, for a list that is not a step: every operation of
/// every micro-batch once, after what it needs: backward of a block whose forward did not keep that
/// for it, after one recompute of the block, and of inputs on the host after they are fetched; a
/// chunk's forward and backward after what other stages send for them is received. Of
/// one block, and of the weight gradients of one micro-batch, the order is fixed (micro-batches
/// ascend, blocks descend): sums of gradients round as they do in the plain order.
void require_step(std::span<const Op> ops, const StageBlocks& stage, int micro_batches);

/// The list without the repetitions of a steady phase: where each micro-batch does what the one
/// before did, two such periods are kept. Whatever a list holds at once, the shorter one holds too.
std::vector<Op> without_repetitions(std::span<const Op> ops);

}  // namespace zero3d
