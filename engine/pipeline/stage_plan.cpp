#include "zero3d/engine/pipeline/stage_plan.h"

#include <algorithm>

namespace zero3d {
namespace {

class Expansion {
 public:
  Expansion(const std::vector<PipelineTask>& tasks, const StageBlocks& stage) : stage_(stage) {
    std::copy_if(tasks.begin(), tasks.end(), std::back_inserter(tasks_), [&](const auto& task) {
      return task.kind == TaskKind::forward || stage.chunk(task.chunk).backward;
    });
  }

  std::vector<Op> run() {
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (i == 0) receive(tasks_[0]);
      if (i + 1 < tasks_.size()) receive(tasks_[i + 1]);
      add_task(tasks_[i]);
    }
    return std::move(ops_);
  }

 private:
  void add(OpKind kind, const PipelineTask& task, int block) {
    ops_.push_back(
        {.kind = kind, .chunk = task.chunk, .block = block, .micro_batch = task.micro_batch});
  }
  bool elsewhere(int stage) const { return stage >= 0 && stage != stage_.stage; }

  void receive(const PipelineTask& task) {
    const Chunk& chunk = stage_.chunk(task.chunk);
    if (task.kind == TaskKind::forward) {
      if (elsewhere(chunk.from)) add(OpKind::receive_values, task, chunk.begin);
    } else if (task.kind != TaskKind::backward_weights && elsewhere(chunk.to)) {
      add(OpKind::receive_gradients, task, chunk.end - 1);
    }
  }

  void add_task(const PipelineTask& task) {
    const Chunk& chunk = stage_.chunk(task.chunk);
    if (task.kind == TaskKind::forward) {
      if (chunk.from < 0) add(OpKind::load_batch, task, chunk.begin);
      for (int block = chunk.begin; block < chunk.end; ++block) add(OpKind::forward, task, block);
      if (elsewhere(chunk.to)) add(OpKind::send_values, task, chunk.end - 1);
      return;
    }
    const OpKind kind = task.kind == TaskKind::backward          ? OpKind::backward
                        : task.kind == TaskKind::backward_inputs ? OpKind::backward_inputs
                                                                 : OpKind::backward_weights;
    const bool begins = begins_gradients(kind);
    if (begins && chunk.to < 0) add(OpKind::loss_gradient, task, chunk.end - 1);
    const int last = std::max(chunk.begin, stage_.backward_down_to);
    for (int block = chunk.end - 1; block >= last; --block) add(kind, task, block);
    if (begins && chunk.gives_back && elsewhere(chunk.from))
      add(OpKind::send_gradients, task, chunk.begin);
  }

  const StageBlocks& stage_;
  std::vector<PipelineTask> tasks_;
  std::vector<Op> ops_;
};

}  // namespace

StageBlocks stage_blocks(const PipelineShape& shape, const std::vector<int>& bounds,
                         int backward_down_to, int stage) {
  StageBlocks result;
  result.stage = stage;
  for (int index = 0; index < shape.chunks; ++index) {
    const int segment = shape.segment_of(stage, index);
    const int first = bounds[static_cast<std::size_t>(segment)];
    const int end = bounds[static_cast<std::size_t>(segment) + 1];
    Chunk chunk;
    chunk.begin = result.blocks;
    chunk.end = result.blocks + end - first;
    chunk.first_block = first;
    if (segment > 0) chunk.from = shape.stage_of(segment - 1);
    if (segment + 1 < shape.segments()) chunk.to = shape.stage_of(segment + 1);
    chunk.backward = end > backward_down_to;
    chunk.gives_back = segment > 0 && first > backward_down_to;
    result.backward_down_to += std::clamp(backward_down_to - first, 0, end - first);
    result.blocks = chunk.end;
    result.chunks.push_back(chunk);
  }
  return result;
}

std::vector<Op> stage_ops(const std::vector<PipelineTask>& tasks, const StageBlocks& stage) {
  return Expansion(tasks, stage).run();
}

}  // namespace zero3d
