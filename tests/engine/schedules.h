// Hand-written lists of a step: forward ahead of backward, backward in two halves.
#pragma once

#include <functional>
#include <vector>

#include "zero3d/engine/schedule.h"

namespace zero3d::test {

inline Op op_of(OpKind kind, int block, int micro_batch) {
  return {.kind = kind, .block = block, .micro_batch = micro_batch};
}

inline void add_forward(std::vector<Op>& ops, const StageBlocks& stage, int m) {
  ops.push_back(op_of(OpKind::load_batch, 0, m));
  for (int block = 0; block < stage.blocks; ++block) ops.push_back(forward_of(block, m));
}

inline void add_backward(std::vector<Op>& ops, const StageBlocks& stage, int m, OpKind kind) {
  if (kind != OpKind::backward_weights) ops.push_back(op_of(OpKind::loss_gradient, 0, m));
  for (int block = stage.blocks - 1; block >= stage.backward_down_to; --block)
    ops.push_back(op_of(kind, block, m));
}

/// One forward, one backward, `ahead` micro-batches of forward being ahead of backward.
inline std::vector<Op> one_forward_one_backward(const StageBlocks& stage, int micro_batches,
                                                int ahead) {
  std::vector<Op> ops;
  for (int i = 0; i < micro_batches + ahead; ++i) {
    if (i < micro_batches) add_forward(ops, stage, i);
    if (i >= ahead) add_backward(ops, stage, i - ahead, OpKind::backward);
  }
  return ops;
}

/// Input gradients at once, weight gradients `late` micro-batches later.
inline std::vector<Op> split_backward(const StageBlocks& stage, int micro_batches, int late) {
  std::vector<Op> ops;
  for (int i = 0; i < micro_batches + late; ++i) {
    if (i < micro_batches) add_forward(ops, stage, i);
    if (i < micro_batches) add_backward(ops, stage, i, OpKind::backward_inputs);
    if (i >= late) add_backward(ops, stage, i - late, OpKind::backward_weights);
  }
  return ops;
}

/// 1F1B whose backward is split too, block by block: inputs of block b, then weights of block b
/// + 1.
inline std::vector<Op> interleaved(const StageBlocks& stage, int micro_batches) {
  std::vector<Op> ops;
  add_forward(ops, stage, 0);
  for (int m = 0; m < micro_batches; ++m) {
    if (m + 1 < micro_batches) add_forward(ops, stage, m + 1);
    ops.push_back(op_of(OpKind::loss_gradient, 0, m));
    for (int block = stage.blocks - 1; block >= stage.backward_down_to; --block) {
      ops.push_back(op_of(OpKind::backward_inputs, block, m));
      if (block + 1 < stage.blocks) ops.push_back(op_of(OpKind::backward_weights, block + 1, m));
    }
    ops.push_back(op_of(OpKind::backward_weights, stage.backward_down_to, m));
  }
  return ops;
}

struct NamedSchedule {
  const char* name;
  std::function<std::vector<Op>(const StageBlocks&, int)> schedule;
};

inline std::vector<NamedSchedule> hand_written_schedules() {
  return {
      {"1F1B", [](const StageBlocks& s, int m) { return one_forward_one_backward(s, m, 2); }},
      {"weights later", [](const StageBlocks& s, int m) { return split_backward(s, m, 1); }},
      {"weights last", [](const StageBlocks& s, int m) { return split_backward(s, m, m); }},
      {"interleaved", interleaved},
  };
}

}  // namespace zero3d::test
