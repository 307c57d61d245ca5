// Making, checking and shortening lists of operations.
#include "zero3d/engine/schedule.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

std::string describe(const Op& op) {
  constexpr const char* kNames[] = {"load_batch", "forward",         "loss_gradient",
                                    "backward",   "backward_inputs", "backward_weights",
                                    "recompute",  "fetch_inputs"};
  return concat(kNames[static_cast<std::size_t>(op.kind)], " of block ", op.block, ", micro-batch ",
                op.micro_batch);
}

/// How far each micro-batch and each block are, while a list is gone through.
class StepCheck {
 public:
  StepCheck(const StageBlocks& stage, int micro_batches)
      : stage_(stage),
        progress_(static_cast<std::size_t>(micro_batches)),
        inputs_done_(static_cast<std::size_t>(stage.blocks), 0),
        weights_done_(static_cast<std::size_t>(stage.blocks), 0) {
    for (Progress& p : progress_) {
      p.next_inputs = p.next_weights = stage.blocks - 1;
      p.kept.resize(static_cast<std::size_t>(stage.blocks));
    }
  }

  void take(const Op& op) {
    require(op.micro_batch >= 0 && op.micro_batch < static_cast<int>(progress_.size()), op);
    require(op.block >= 0 && op.block < stage_.blocks && op.chunk == 0 && op.tile == 0, op);
    require(op.keep == Keep::for_backward || op.kind == OpKind::forward, op);
    Progress& p = progress_[static_cast<std::size_t>(op.micro_batch)];
    const bool forward_done = p.next_forward == stage_.blocks;
    switch (op.kind) {
      case OpKind::load_batch:
        require(!p.loaded, op);
        p.loaded = true;
        return;
      case OpKind::forward:
        require(p.loaded && op.block == p.next_forward++, op);
        return take_forward(op, p);
      case OpKind::loss_gradient:
        require(forward_done && op.micro_batch == losses_++, op);
        p.has_gradient = true;
        return;
      case OpKind::recompute:
        require(forward_done, op);
        return take_recompute(op, p);
      case OpKind::fetch_inputs:
        require(std::exchange(p.kept[at(op)], Keep::inputs) == Keep::inputs_on_host, op);
        return;
      default:
        take_backward(op, p);
    }
  }

  bool complete() const {
    return std::all_of(progress_.begin(), progress_.end(), [&](const Progress& p) {
      return p.has_gradient && p.next_weights < stage_.backward_down_to;
    });
  }

 private:
  struct Progress {
    bool loaded = false;
    bool has_gradient = false;
    int next_forward = 0;
    int next_inputs = 0;
    int next_weights = 0;
    std::vector<Keep> kept;  // per block: what there is now
    int recomputed = -1;     // the last block that was
  };

  void take_forward(const Op& op, Progress& p) const {
    p.kept[at(op)] = op.keep;
    if (op.keep == Keep::for_backward) return;
    require(op.block >= stage_.backward_down_to && op.block + 1 < stage_.blocks, op);
    if (keeps_inputs(op.keep)) return;
    require(op.block > stage_.backward_down_to && p.kept[at(op) - 1] != Keep::for_backward, op);
  }

  static void take_recompute(const Op& op, Progress& p) {
    const Keep kept = std::exchange(p.kept[at(op)], Keep::for_backward);
    const bool has_inputs = kept == Keep::inputs || p.recomputed == op.block - 1;
    require((kept == Keep::inputs || kept == Keep::nothing) && has_inputs, op);
    p.recomputed = op.block;
  }

  void take_backward(const Op& op, Progress& p) {
    require(p.has_gradient && op.block >= stage_.backward_down_to, op);
    if (begins_gradients(op.kind)) {
      require(p.kept[at(op)] == Keep::for_backward, op);
      require(op.block == p.next_inputs-- && op.micro_batch == inputs_done_[at(op)]++, op);
    }
    if (ends_gradients(op.kind)) {
      require(op.block > p.next_inputs && op.block == p.next_weights-- &&
                  op.micro_batch == weights_done_[at(op)]++,
              op);
    }
  }

  static std::size_t at(const Op& op) { return static_cast<std::size_t>(op.block); }
  static void require(bool condition, const Op& op) {
    if (condition) return;
    throw_invalid(concat("the schedule of a step has ", describe(op),
                         " where it cannot run: every operation comes once, after what it needs; "
                         "micro-batches in order at each block, weight gradients from the last "
                         "block down"));
  }

  StageBlocks stage_;
  std::vector<Progress> progress_;
  std::vector<int> inputs_done_;   // per block: micro-batches
  std::vector<int> weights_done_;  // per block: micro-batches
  int losses_ = 0;
};

/// The operations without their micro-batch, in some order of their own.
std::vector<Op> kinds_of(std::span<const Op> ops) {
  std::vector<Op> kinds(ops.begin(), ops.end());
  for (Op& op : kinds) op.micro_batch = 0;
  std::sort(kinds.begin(), kinds.end(), [](const Op& a, const Op& b) {
    return std::tie(a.kind, a.chunk, a.block, a.tile, a.keep) <
           std::tie(b.kind, b.chunk, b.block, b.tile, b.keep);
  });
  return kinds;
}

}  // namespace

std::vector<Op> plan_step(const StageBlocks& stage, int micro_batches) {
  std::vector<Op> ops;
  for (int micro = 0; micro < micro_batches; ++micro) {
    ops.push_back({.kind = OpKind::load_batch, .micro_batch = micro});
    for (int block = 0; block < stage.blocks; ++block) ops.push_back(forward_of(block, micro));
    ops.push_back({.kind = OpKind::loss_gradient, .block = stage.blocks - 1, .micro_batch = micro});
    for (int block = stage.blocks - 1; block >= stage.backward_down_to; --block)
      ops.push_back(backward_of(block, micro));
  }
  return ops;
}

std::vector<Op> plan_evaluation(const StageBlocks& stage) {
  std::vector<Op> ops{{.kind = OpKind::load_batch}};
  for (int block = 0; block < stage.blocks; ++block) ops.push_back(forward_of(block));
  return ops;
}

void require_step(std::span<const Op> ops, const StageBlocks& stage, int micro_batches) {
  StepCheck check(stage, micro_batches);
  for (const Op& op : ops) check.take(op);
  if (!check.complete()) {
    throw_invalid(concat("the schedule of a step of ", micro_batches, " micro-batches on ",
                         stage.blocks, " blocks ends before all their work is done"));
  }
}

std::vector<Op> without_repetitions(std::span<const Op> ops) {
  const auto count = static_cast<std::size_t>(
      std::count_if(ops.begin(), ops.end(), [](const Op& op) { return op.micro_batch == 0; }));
  std::vector<Op> result(ops.begin(), ops.end());
  std::size_t begin = 0, length = 0;  // of the longest run in which ops[i + count] repeats ops[i]
  for (std::size_t first = 0, i = 0; count > 0 && i + count < ops.size(); ++i) {
    Op next = ops[i];
    ++next.micro_batch;
    if (ops[i + count] != next) {
      first = i + 1;
    } else if (i + 1 - first > length) {
      begin = first;
      length = i + 1 - first;
    }
  }
  if (length < 2 * count) return result;
  std::vector<Op> of_one;
  std::copy_if(ops.begin(), ops.end(), std::back_inserter(of_one),
               [](const Op& op) { return op.micro_batch == 0; });
  if (kinds_of(ops.subspan(begin, count)) != kinds_of(of_one)) return result;
  const std::size_t periods = length / count - 1;
  const auto from = result.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto rest = result.erase(from, from + static_cast<std::ptrdiff_t>(periods * count));
  for (auto op = rest; op != result.end(); ++op) op->micro_batch -= static_cast<int>(periods);
  return result;
}

}  // namespace zero3d
