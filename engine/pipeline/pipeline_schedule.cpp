#include "zero3d/engine/pipeline/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/pipeline/fold_schedule.h"

namespace zero3d {
namespace {

constexpr std::array kNames = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};

using Tasks = std::vector<PipelineTask>;
/// (chunk, micro-batch).
using Order = std::vector<std::pair<int, int>>;

Tasks plan_gpipe(int micro_batches) {
  Tasks tasks;
  for (const TaskKind kind : {TaskKind::forward, TaskKind::backward})
    for (int m = 0; m < micro_batches; ++m) tasks.push_back({kind, 0, m});
  return tasks;
}

/// `ahead` forwards, then a forward and a backward in turn, then the backwards that are left.
Tasks alternate(const Order& forwards, const Order& backwards, int ahead, TaskKind backward) {
  Tasks tasks;
  std::size_t next = 0;
  const auto add_forward = [&] {
    if (next == forwards.size()) return;
    tasks.push_back({TaskKind::forward, forwards[next].first, forwards[next].second});
    ++next;
  };
  for (int i = 0; i < ahead; ++i) add_forward();
  for (const auto& [chunk, micro_batch] : backwards) {
    add_forward();
    tasks.push_back({backward, chunk, micro_batch});
  }
  return tasks;
}

Order in_order(int micro_batches) {
  Order order;
  for (int m = 0; m < micro_batches; ++m) order.emplace_back(0, m);
  return order;
}

/// Weight gradients follow `stage` micro-batches after their inputs' gradients, so that each stage
/// has at most as many micro-batches in flight as the first one in 1F1B.
Tasks plan_zero_bubble_h1(const PipelineShape& shape, int stage, int micro_batches) {
  const Order order = in_order(micro_batches);
  Tasks tasks;
  int weights = 0;
  for (const PipelineTask& task :
       alternate(order, order, shape.stages - stage - 1, TaskKind::backward_inputs)) {
    tasks.push_back(task);
    if (task.kind == TaskKind::backward_inputs && task.micro_batch >= stage)
      tasks.push_back({TaskKind::backward_weights, 0, weights++});
  }
  while (weights < micro_batches) tasks.push_back({TaskKind::backward_weights, 0, weights++});
  return tasks;
}

/// Groups of as many micro-batches as stages pass each chunk together. Where they do not divide,
/// the last group is planned as a whole one, and what is not there left out: the rest stays in an
/// order in which nobody waits for ever.
Tasks plan_interleaved(const PipelineShape& shape, int stage, int micro_batches) {
  const int whole = (micro_batches + shape.stages - 1) / shape.stages * shape.stages;
  Order forwards;
  Order backwards;
  for (int group = 0; group < whole; group += shape.stages) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int m = group; m < group + shape.stages; ++m) {
        forwards.emplace_back(chunk, m);
        backwards.emplace_back(shape.chunks - 1 - chunk, m);
      }
    }
  }
  const int ahead = 2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.stages;
  Tasks tasks = alternate(forwards, backwards, ahead, TaskKind::backward);
  std::erase_if(tasks, [&](const PipelineTask& task) { return task.micro_batch >= micro_batches; });
  return tasks;
}

}  // namespace

const char* name_of(PipelineSchedule schedule) {
  return kNames[static_cast<std::size_t>(schedule)];
}

PipelineSchedule parse_pipeline_schedule(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    throw_invalid(concat("there is no pipeline schedule '", name,
                         "'; expected gpipe, 1f1b, interleaved, zb-h1 or zb-v"));
  }
  return static_cast<PipelineSchedule>(found - kNames.begin());
}

int PipelineShape::segment_of(int stage, int chunk) const {
  return folded && chunk == 1 ? 2 * stages - 1 - stage : chunk * stages + stage;
}

int PipelineShape::stage_of(int segment) const {
  const int place = segment % stages;
  return folded && segment >= stages ? stages - 1 - place : place;
}

PipelineShape pipeline_shape(PipelineSchedule schedule, int stages, int virtual_stages) {
  const bool folded = schedule == PipelineSchedule::zero_bubble_v;
  const bool several = folded || schedule == PipelineSchedule::interleaved;
  const int chunks = virtual_stages > 0 ? virtual_stages : several ? 2 : 1;
  if (several != (chunks > 1) || (folded && chunks != 2)) {
    throw_invalid(concat("the schedule ", name_of(schedule), " has ",
                         folded    ? "2 virtual stages"
                         : several ? "2 or more virtual stages"
                                   : "1 virtual stage",
                         " on a rank, not ", chunks,
                         "; change --virtual-stages (zero3d.virtual_stages) or --schedule"));
  }
  return {stages, chunks, folded};
}

std::vector<std::vector<PipelineTask>> plan_pipeline(PipelineSchedule schedule,
                                                     const PipelineShape& shape,
                                                     int micro_batches) {
  if (schedule == PipelineSchedule::zero_bubble_v) return plan_folded(shape, micro_batches);
  std::vector<Tasks> plan;
  for (int stage = 0; stage < shape.stages; ++stage) {
    switch (schedule) {
      case PipelineSchedule::gpipe:
        plan.push_back(plan_gpipe(micro_batches));
        break;
      case PipelineSchedule::interleaved:
        plan.push_back(plan_interleaved(shape, stage, micro_batches));
        break;
      case PipelineSchedule::zero_bubble_h1:
        plan.push_back(plan_zero_bubble_h1(shape, stage, micro_batches));
        break;
      default:
        plan.push_back(alternate(in_order(micro_batches), in_order(micro_batches),
                                 shape.stages - stage - 1, TaskKind::backward));
    }
  }
  return plan;
}

int peak_in_flight(const std::vector<PipelineTask>& tasks) {
  int now = 0;
  int peak = 0;
  for (const PipelineTask& task : tasks) {
    if (task.kind == TaskKind::forward) peak = std::max(peak, ++now);
    if (task.kind == TaskKind::backward || task.kind == TaskKind::backward_weights) --now;
  }
  return peak;
}

}  // namespace zero3d
