// Schedules of a pipeline as data: which stage runs which part of which micro-batch, in what order.
// Pure functions of the numbers of stages, chunks and micro-batches; pipeline/stage_plan makes
// operations of a step out of them, pipeline/timeline plays them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zero3d {

enum class PipelineSchedule {
  gpipe,                     ///< All forwards, then all backwards (Huang et al. 2019).
  one_forward_one_backward,  ///< Backward as early as it can be (PipeDream-Flush).
  interleaved,               ///< The same with several chunks a rank (Narayanan et al. 2021).
  zero_bubble_h1,            ///< Weight gradients fill bubbles (Qi et al. 2023), memory as 1F1B.
  zero_bubble_v              ///< Two chunks a rank, folded, so that nothing waits in between.
};

/// "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v".
const char* name_of(PipelineSchedule schedule);
/// Throws Error(kInvalid) that lists the names.
PipelineSchedule parse_pipeline_schedule(std::string_view name);

/// The model as segments in a row, each a chunk of some stage.
struct PipelineShape {
  int stages = 1;
  int chunks = 1;       ///< Of each stage.
  bool folded = false;  ///< Two chunks: stage s has segments s and 2 stages - 1 - s.

  int segments() const { return stages * chunks; }
  int segment_of(int stage, int chunk) const;
  int stage_of(int segment) const;
  int chunk_of(int segment) const { return segment / stages; }
  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};
/// Throws Error(kInvalid) for `virtual_stages` that the schedule does not have: interleaved takes
/// two or more, zb-v two, the others one; 0 stands for the least.
PipelineShape pipeline_shape(PipelineSchedule schedule, int stages, int virtual_stages);

enum class TaskKind { forward, backward, backward_inputs, backward_weights };

struct PipelineTask {
  TaskKind kind = TaskKind::forward;
  int chunk = 0;
  int micro_batch = 0;
  friend bool operator==(const PipelineTask&, const PipelineTask&) = default;
};

/// What each stage does in a step, in order. Of each chunk micro-batches ascend, in each kind of
/// task; of each micro-batch weight gradients come from the last chunk down.
std::vector<std::vector<PipelineTask>> plan_pipeline(PipelineSchedule schedule,
                                                     const PipelineShape& shape, int micro_batches);

/// The most segments of micro-batches that are between the end of forward and the end of backward.
int peak_in_flight(const std::vector<PipelineTask>& tasks);

}  // namespace zero3d
