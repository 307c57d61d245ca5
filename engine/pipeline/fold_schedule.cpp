// Lists made by playing the pipeline in ticks: whoever is free takes the most urgent task there is.
#include "zero3d/engine/pipeline/fold_schedule.h"

#include <deque>
#include <optional>

namespace zero3d {
namespace {

class FoldPlanner {
 public:
  FoldPlanner(const PipelineShape& shape, int micro_batches)
      : shape_(shape),
        micro_batches_(micro_batches),
        forwards_(static_cast<std::size_t>(shape.segments()), 0),
        inputs_(forwards_),
        weights_(static_cast<std::size_t>(shape.stages)),
        in_flight_(static_cast<std::size_t>(shape.stages), 0),
        plan_(static_cast<std::size_t>(shape.stages)) {}

  std::vector<std::vector<PipelineTask>> run() {
    for (int left = 3 * shape_.segments() * micro_batches_; left > 0;) {
      std::vector<std::optional<PipelineTask>> chosen;  // before any of this tick counts
      for (int stage = 0; stage < shape_.stages; ++stage) chosen.push_back(choose(stage));
      for (int stage = 0; stage < shape_.stages; ++stage) {
        const auto& task = chosen[static_cast<std::size_t>(stage)];
        if (!task) continue;
        take(stage, *task);
        --left;
      }
    }
    return std::move(plan_);
  }

 private:
  int& forwards(int segment) { return forwards_[static_cast<std::size_t>(segment)]; }
  int& inputs(int segment) { return inputs_[static_cast<std::size_t>(segment)]; }

  /// Gradients of inputs first: stages below wait for them. Then forwards of the second chunk,
  /// which lead there, then those of the first; weight gradients when nothing else can be done.
  std::optional<PipelineTask> choose(int stage) {
    for (const int chunk : {0, 1})
      if (const auto m = ready_inputs(shape_.segment_of(stage, chunk)))
        return PipelineTask{TaskKind::backward_inputs, chunk, *m};
    for (const int chunk : {1, 0}) {
      // The first chunk leaves room for the second, or nothing would ever end.
      const int room = 2 * shape_.stages - (chunk == 0 ? 1 : 0);
      if (in_flight_[static_cast<std::size_t>(stage)] >= room) continue;
      if (const auto m = ready_forward(shape_.segment_of(stage, chunk)))
        return PipelineTask{TaskKind::forward, chunk, *m};
    }
    const auto& weights = weights_[static_cast<std::size_t>(stage)];
    if (weights.empty()) return std::nullopt;
    return weights.front();
  }

  std::optional<int> ready_forward(int segment) {
    const int next = forwards(segment);
    if (next == micro_batches_ || (segment > 0 && forwards(segment - 1) <= next))
      return std::nullopt;
    return next;
  }

  std::optional<int> ready_inputs(int segment) {
    const int next = inputs(segment);
    const bool last = segment + 1 == shape_.segments();
    if (forwards(segment) <= next || (!last && inputs(segment + 1) <= next)) return std::nullopt;
    return next;
  }

  void take(int stage, const PipelineTask& task) {
    const int segment = shape_.segment_of(stage, task.chunk);
    const auto at = static_cast<std::size_t>(stage);
    plan_[at].push_back(task);
    if (task.kind == TaskKind::forward) {
      ++forwards(segment);
      ++in_flight_[at];
    } else if (task.kind == TaskKind::backward_inputs) {
      ++inputs(segment);
      weights_[at].push_back({TaskKind::backward_weights, task.chunk, task.micro_batch});
    } else {
      weights_[at].pop_front();
      --in_flight_[at];
    }
  }

  const PipelineShape& shape_;
  const int micro_batches_;
  std::vector<int> forwards_;  // per segment: micro-batches done
  std::vector<int> inputs_;
  std::vector<std::deque<PipelineTask>> weights_;  // per stage: those that can be done
  std::vector<int> in_flight_;
  std::vector<std::vector<PipelineTask>> plan_;
};

}  // namespace

std::vector<std::vector<PipelineTask>> plan_folded(const PipelineShape& shape, int micro_batches) {
  return FoldPlanner(shape, micro_batches).run();
}

}  // namespace zero3d
