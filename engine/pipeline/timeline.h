// A pipeline played out: when each task of each stage begins and ends if tasks take given times and
// sending takes none. What the formulas of bubbles are held to, what is drawn, and the proof that
// a schedule ends. A pure function.
#pragma once

#include <string>
#include <vector>

#include "zero3d/engine/pipeline/pipeline_schedule.h"

namespace zero3d {

/// Of one chunk and micro-batch. Backward in one piece takes the sum of both halves.
struct TaskTimes {
  double forward = 1;
  double backward_inputs = 1;
  double backward_weights = 1;
  double of(TaskKind kind) const;
};

struct TimedTask {
  PipelineTask task;
  double begin = 0;
  double end = 0;
};

struct Timeline {
  std::vector<std::vector<TimedTask>> stages;
  double end = 0;  ///< Of the last task of all.

  double busy(int stage) const;
  /// Between a stage's first and last task: the time in which it has none.
  double idle_within(int stage) const;
  /// The share of all stages' time until `end` in which they have no task.
  double bubble() const;
};

/// `tasks`: a list per stage, as plan_pipeline makes them. Throws Error(kInvalid) that names the
/// first task that waits for ever.
Timeline play_pipeline(const PipelineShape& shape,
                       const std::vector<std::vector<PipelineTask>>& tasks, const TaskTimes& times);

/// Per stage a line: F, B (or I and W, its halves) and the micro-batch where a task begins, with a
/// letter between for chunks above the first ('b', 'c', ...); dots where the stage waits.
std::vector<std::string> draw_timeline(const Timeline& timeline);
struct TitledTimeline {
  std::string title;
  Timeline timeline;
};
/// The same as an SVG picture, one timeline below the other.
std::string timeline_svg(const std::vector<TitledTimeline>& timelines);

}  // namespace zero3d
