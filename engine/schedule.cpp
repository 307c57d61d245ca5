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
  constexpr const char* kNames[] = {"load_batch",  "forward",           "loss_gradient",
                                    "backward",    "backward_inputs",   "backward_weights",
                                    "recompute",   "fetch_inputs",      "receive_values",
                                    "send_values", "receive_gradients", "send_gradients"};
  return concat(kNames[static_cast<std::size_t>(op.kind)], " of ",
                is_transfer(op.kind) ? concat("chunk ", op.chunk) : concat("block ", op.block),
                ", micro-batch ", op.micro_batch);
}

/// How far each micro-batch and each block are, while a list is gone through.
class StepCheck {
 public:
  StepCheck(const StageBlocks& stage, int micro_batches)
      : stage_(stage),
        chunks_(stage.all_chunks()),
        progress_(static_cast<std::size_t>(micro_batches)),
        inputs_done_(static_cast<std::size_t>(stage.blocks), 0),
        weights_done_(static_cast<std::size_t>(stage.blocks), 0) {
    for (Progress& p : progress_) {
      p.next_inputs = p.next_weights = stage.blocks - 1;
      p.kept.resize(static_cast<std::size_t>(stage.blocks));
      p.chunks.resize(chunks_.size());
    }
  }

  void take(const Op& op) {
    require(op.micro_batch >= 0 && op.micro_batch < static_cast<int>(progress_.size()), op);
    require(op.block >= 0 && op.block < stage_.blocks && op.tile == 0, op);
    require(op.chunk >= 0 && op.chunk < static_cast<int>(chunks_.size()), op);
    require(op.keep == Keep::for_backward || op.kind == OpKind::forward, op);
    Progress& p = progress_[static_cast<std::size_t>(op.micro_batch)];
    if (is_transfer(op.kind)) return take_transfer(op, p);
    const Chunk& chunk = chunks_[static_cast<std::size_t>(op.chunk)];
    require(op.kind == OpKind::load_batch || (op.block >= chunk.begin && op.block < chunk.end), op);
    switch (op.kind) {
      case OpKind::load_batch:
        require(chunk.from < 0 && take_once(at_chunk(op, p).has_values), op);
        return;
      case OpKind::forward:
        require((op.block != chunk.begin || has_values(op, p)) && op.block == p.next_forward++, op);
        return take_forward(op, p);
      case OpKind::loss_gradient:
        require(chunk.to < 0 && p.next_forward == stage_.blocks && op.micro_batch == losses_++, op);
        require(take_once(at_chunk(op, p).has_gradients), op);
        return;
      case OpKind::recompute:
        require(p.next_forward == stage_.blocks, op);
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
      if (p.next_forward < stage_.blocks || p.next_weights >= stage_.backward_down_to) return false;
      for (std::size_t i = 0; i < chunks_.size(); ++i) {
        if (sends(chunks_[i]) && !p.chunks[i].sent_values) return false;
        if (gives_back(chunks_[i]) && !p.chunks[i].sent_gradients) return false;
        if (chunks_[i].to < 0 && chunks_[i].backward && !p.chunks[i].has_gradients) return false;
      }
      return true;
    });
  }

 private:
  struct ChunkProgress {
    bool has_values = false;
    bool has_gradients = false;
    bool sent_values = false;
    bool sent_gradients = false;
  };
  struct Progress {
    int next_forward = 0;
    int next_inputs = 0;
    int next_weights = 0;
    std::vector<Keep> kept;  // per block: what there is now
    int recomputed = -1;     // the last block that was
    std::vector<ChunkProgress> chunks;
  };

  static bool take_once(bool& flag) { return !std::exchange(flag, true); }
  ChunkProgress& at_chunk(const Op& op, Progress& p) const {
    return p.chunks[static_cast<std::size_t>(op.chunk)];
  }
  // What stays on this rank is handed on without an operation.
  bool sends(const Chunk& chunk) const { return chunk.to >= 0 && chunk.to != stage_.stage; }
  bool receives(const Chunk& chunk) const { return chunk.from >= 0 && chunk.from != stage_.stage; }
  bool gives_back(const Chunk& chunk) const { return chunk.gives_back && receives(chunk); }
  bool has_values(const Op& op, Progress& p) const {
    return at_chunk(op, p).has_values ||
           chunks_[static_cast<std::size_t>(op.chunk)].from == stage_.stage;
  }
  bool has_gradients(const Op& op, Progress& p) const {
    return at_chunk(op, p).has_gradients ||
           chunks_[static_cast<std::size_t>(op.chunk)].to == stage_.stage;
  }

  void take_transfer(const Op& op, Progress& p) {
    const Chunk& chunk = chunks_[static_cast<std::size_t>(op.chunk)];
    ChunkProgress& done = at_chunk(op, p);
    switch (op.kind) {
      case OpKind::receive_values:
        return require(receives(chunk) && take_once(done.has_values), op);
      case OpKind::send_values:
        return require(sends(chunk) && p.next_forward == chunk.end && take_once(done.sent_values),
                       op);
      case OpKind::receive_gradients:
        return require(sends(chunk) && chunk.backward && take_once(done.has_gradients), op);
      default:
        return require(
            gives_back(chunk) && p.next_inputs == chunk.begin - 1 && take_once(done.sent_gradients),
            op);
    }
  }

  void take_forward(const Op& op, Progress& p) const {
    p.kept[at(op)] = op.keep;
    if (op.keep == Keep::for_backward) return;
    const bool ends_model = op.block + 1 == stage_.blocks && stage_.ends_model();
    require(op.block >= stage_.backward_down_to && !ends_model, op);
    if (keeps_inputs(op.keep)) return;
    const Chunk& chunk = chunks_[static_cast<std::size_t>(op.chunk)];
    require(op.block > std::max(stage_.backward_down_to, chunk.begin) &&
                p.kept[at(op) - 1] != Keep::for_backward,
            op);
  }

  static void take_recompute(const Op& op, Progress& p) {
    const Keep kept = std::exchange(p.kept[at(op)], Keep::for_backward);
    const bool has_inputs = kept == Keep::inputs || p.recomputed == op.block - 1;
    require((kept == Keep::inputs || kept == Keep::nothing) && has_inputs, op);
    p.recomputed = op.block;
  }

  void take_backward(const Op& op, Progress& p) {
    require(has_gradients(op, p) && op.block >= stage_.backward_down_to, op);
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
  std::vector<Chunk> chunks_;
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

std::vector<Chunk> StageBlocks::all_chunks() const {
  if (!chunks.empty()) return chunks;
  return {{.end = blocks, .backward = backward_down_to < blocks}};
}

int StageBlocks::chunk_of(int block) const {
  const auto found = std::find_if(chunks.begin(), chunks.end(),
                                  [block](const Chunk& chunk) { return block < chunk.end; });
  return found == chunks.end() ? 0 : static_cast<int>(found - chunks.begin());
}

int StageBlocks::block_in_model(int block) const {
  if (chunks.empty()) return block;
  const Chunk& chunk = this->chunk(chunk_of(block));
  return chunk.first_block + block - chunk.begin;
}

bool StageBlocks::ends_model() const { return chunks.empty() || chunks.back().to < 0; }

bool StageBlocks::wants_input_gradient(int block) const {
  if (block != backward_down_to || chunks.empty()) return block > backward_down_to;
  const Chunk& chunk = this->chunk(chunk_of(block));
  return block == chunk.begin && chunk.gives_back;
}

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
  std::vector<Op> ops;
  int index = 0;
  for (const Chunk& chunk : stage.all_chunks()) {
    const auto add = [&](OpKind kind, int block) {
      ops.push_back({.kind = kind, .chunk = index, .block = block});
    };
    if (chunk.from < 0) add(OpKind::load_batch, chunk.begin);
    if (chunk.from >= 0 && chunk.from != stage.stage) add(OpKind::receive_values, chunk.begin);
    for (int block = chunk.begin; block < chunk.end; ++block) add(OpKind::forward, block);
    if (chunk.to >= 0 && chunk.to != stage.stage) add(OpKind::send_values, chunk.end - 1);
    ++index;
  }
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
