#include "zero3d/engine/pipeline/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

class Player {
 public:
  Player(const PipelineShape& shape, const std::vector<std::vector<PipelineTask>>& tasks,
         const TaskTimes& times)
      : shape_(shape), tasks_(tasks), times_(times), next_(tasks.size(), 0) {
    timeline_.stages.resize(tasks.size());
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < tasks_.size(); ++stage)
        while (next_[stage] < tasks_[stage].size() && take(stage)) moved = true;
    }
    for (std::size_t stage = 0; stage < tasks_.size(); ++stage)
      if (next_[stage] < tasks_[stage].size()) throw_stuck(stage);
    return std::move(timeline_);
  }

 private:
  using Done = std::map<std::tuple<TaskKind, int, int>, double>;  // segment, micro-batch

  /// When the task of a segment ended; nothing: it has not.
  std::optional<double> ended(TaskKind kind, int segment, int micro_batch) const {
    const auto found = done_.find({kind, segment, micro_batch});
    if (found == done_.end()) return std::nullopt;
    return found->second;
  }

  /// When what `task` needs is there; nothing: it is not yet.
  std::optional<double> ready(int segment, const PipelineTask& task) const {
    const int m = task.micro_batch;
    switch (task.kind) {
      case TaskKind::forward:
        return segment == 0 ? 0.0 : ended(TaskKind::forward, segment - 1, m);
      case TaskKind::backward_weights:
        return ended(TaskKind::backward_inputs, segment, m);
      default:
        const auto here = ended(TaskKind::forward, segment, m);
        if (segment + 1 == shape_.segments() || !here) return here;
        const auto above = ended(task.kind, segment + 1, m);
        return above ? std::optional(std::max(*here, *above)) : above;
    }
  }

  bool take(std::size_t stage) {
    const PipelineTask& task = tasks_[stage][next_[stage]];
    const int segment = shape_.segment_of(static_cast<int>(stage), task.chunk);
    const std::optional<double> there = ready(segment, task);
    if (!there) return false;
    std::vector<TimedTask>& line = timeline_.stages[stage];
    const double begin = std::max(*there, line.empty() ? 0.0 : line.back().end);
    const double end = begin + times_.of(task.kind);
    line.push_back({task, begin, end});
    done_[{task.kind, segment, task.micro_batch}] = end;
    timeline_.end = std::max(timeline_.end, end);
    ++next_[stage];
    return true;
  }

  [[noreturn]] void throw_stuck(std::size_t stage) const {
    const PipelineTask& task = tasks_[stage][next_[stage]];
    throw_invalid(concat("the pipeline's schedule never ends: stage ", stage,
                         " waits for what its ",
                         task.kind == TaskKind::forward ? "forward" : "backward", " of chunk ",
                         task.chunk, ", micro-batch ", task.micro_batch, " needs"));
  }

  const PipelineShape& shape_;
  const std::vector<std::vector<PipelineTask>>& tasks_;
  const TaskTimes& times_;
  std::vector<std::size_t> next_;
  Done done_;
  Timeline timeline_;
};

/// A letter for the kind, then the micro-batch; chunks above the first with a mark between.
std::string label(const PipelineTask& task) {
  constexpr const char* kMarks[] = {"F", "B", "I", "W"};
  return concat(kMarks[static_cast<std::size_t>(task.kind)],
                task.chunk > 0 ? std::string(1, static_cast<char>('a' + task.chunk)) : "",
                task.micro_batch);
}

std::string fill_of(const PipelineTask& task) {
  constexpr const char* kColours[] = {"#9ecae9", "#f2a65a", "#8fd19e", "#d7c4e8"};
  return kColours[static_cast<std::size_t>(task.kind)];
}

constexpr double kSlot = 28, kRow = 26, kLeft = 70, kTop = 34;  // pixels

std::string number(double value) { return concat(std::round(value * 10) / 10); }

/// From `top` down.
void add_svg_rows(const TitledTimeline& part, double top, std::string& svg) {
  svg += concat("<text x=\"8\" y=\"", number(top + 18), "\">", part.title, "</text>\n");
  double y = top + kTop;
  for (std::size_t stage = 0; stage < part.timeline.stages.size(); ++stage, y += kRow) {
    svg += concat("<text x=\"8\" y=\"", number(y + 16), "\">stage ", stage, "</text>\n");
    for (const TimedTask& task : part.timeline.stages[stage]) {
      const double x = kLeft + task.begin * kSlot;
      const double length = (task.end - task.begin) * kSlot;
      svg += concat("<rect x=\"", number(x), "\" y=\"", number(y), "\" width=\"", number(length),
                    "\" height=\"", number(kRow - 4), "\" fill=\"", fill_of(task.task),
                    "\" stroke=\"#444\"", task.task.chunk % 2 == 1 ? " stroke-width=\"2\"" : "",
                    "/>\n");
      if (length >= kSlot / 2)
        svg += concat("<text x=\"", number(x + 3), "\" y=\"", number(y + 15), "\">",
                      label(task.task), "</text>\n");
    }
  }
}

}  // namespace

double TaskTimes::of(TaskKind kind) const {
  switch (kind) {
    case TaskKind::forward:
      return forward;
    case TaskKind::backward:
      return backward_inputs + backward_weights;
    case TaskKind::backward_inputs:
      return backward_inputs;
    default:
      return backward_weights;
  }
}

double Timeline::busy(int stage) const {
  double sum = 0;
  for (const TimedTask& task : stages[static_cast<std::size_t>(stage)])
    sum += task.end - task.begin;
  return sum;
}

double Timeline::idle_within(int stage) const {
  const std::vector<TimedTask>& line = stages[static_cast<std::size_t>(stage)];
  return line.empty() ? 0 : line.back().end - line.front().begin - busy(stage);
}

double Timeline::bubble() const {
  double sum = 0;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) sum += busy(static_cast<int>(stage));
  return end > 0 ? 1 - sum / (end * static_cast<double>(stages.size())) : 0;
}

Timeline play_pipeline(const PipelineShape& shape,
                       const std::vector<std::vector<PipelineTask>>& tasks,
                       const TaskTimes& times) {
  return Player(shape, tasks, times).run();
}

std::vector<std::string> draw_timeline(const Timeline& timeline) {
  std::size_t width = 2;
  for (const auto& line : timeline.stages)
    for (const TimedTask& task : line) width = std::max(width, label(task.task).size());
  ++width;
  std::vector<std::string> lines;
  for (const auto& line : timeline.stages) {
    std::string text;
    for (const TimedTask& task : line) {
      const auto begin = static_cast<std::size_t>(task.begin * static_cast<double>(width) + 0.5);
      const auto end = static_cast<std::size_t>(task.end * static_cast<double>(width) + 0.5);
      while (text.size() < begin) text += text.size() % width == 0 ? '.' : ' ';
      std::string cell = label(task.task);
      cell.resize(std::max(end - begin, cell.size()), ' ');
      for (std::size_t i = width; i < cell.size(); i += width) cell[i] = '-';
      text += cell;
    }
    lines.push_back(text);
  }
  return lines;
}

std::string timeline_svg(const std::vector<TitledTimeline>& timelines) {
  double width = 0, height = 0;
  std::string rows;
  for (const TitledTimeline& part : timelines) {
    add_svg_rows(part, height, rows);
    width = std::max(width, kLeft + part.timeline.end * kSlot + 10);
    height += kTop + kRow * static_cast<double>(part.timeline.stages.size());
  }
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", number(width), "\" height=\"",
                number(height + 10), "\" font-family=\"sans-serif\" font-size=\"11\">\n", rows,
                "</svg>\n");
}

}  // namespace zero3d
