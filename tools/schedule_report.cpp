#include "schedule_report.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>

#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/pipeline/timeline.h"

namespace zero3d::tools {
namespace {

constexpr std::size_t kColumns = 160;

PipelineShape shape_of(const TrainSettings& settings) {
  return pipeline_shape(settings.pipeline.schedule, settings.pp, settings.pipeline.virtual_stages);
}

Timeline planned(const TrainSettings& settings) {
  const PipelineShape shape = shape_of(settings);
  const auto micro_batches = static_cast<int>(settings.accumulation);
  return play_pipeline(shape, plan_pipeline(settings.pipeline.schedule, shape, micro_batches), {});
}

std::string title(const TrainSettings& settings, const Timeline& timeline) {
  return concat(name_of(settings.pipeline.schedule), ", ", settings.pp, " stages, ",
                settings.accumulation,
                " micro-batches: ", static_cast<int>(100 * timeline.bubble() + 0.5), "% bubble");
}

/// Of a span that BlockRunner records: "backward block 3 of micro-batch 2".
TimedTask task_of(const Span& span) {
  TimedTask timed;
  timed.task.kind = span.name.starts_with("forward") ? TaskKind::forward : TaskKind::backward;
  const std::size_t at = span.name.rfind(' ');
  const char* const end = span.name.data() + span.name.size();
  std::from_chars(span.name.data() + std::min(at + 1, span.name.size()), end,
                  timed.task.micro_batch);
  timed.begin = static_cast<double>(span.begin_ns);
  timed.end = static_cast<double>(span.end_ns);
  return timed;
}

/// The last of `steps` equal parts of a stage's backward, and the forwards since the part before.
std::vector<TimedTask> last_step(std::vector<TimedTask> all, std::int64_t steps) {
  std::sort(all.begin(), all.end(),
            [](const TimedTask& a, const TimedTask& b) { return a.begin < b.begin; });
  const auto is_backward = [](const TimedTask& task) {
    return task.task.kind == TaskKind::backward;
  };
  const auto backwards = std::count_if(all.begin(), all.end(), is_backward);
  auto first = all.begin();
  for (auto left = backwards - backwards / std::max<std::int64_t>(steps, 1); left > 0; ++first)
    left -= is_backward(*first) ? 1 : 0;
  auto last = std::find_if(all.rbegin(), all.rend(), is_backward).base();
  return {first, std::max(first, last)};
}

/// What the first replica did, in the units of `plan`; no stages where nothing was recorded.
Timeline measured(const TrainPlan& plan, const Timeline& wanted) {
  const TrainSettings& settings = plan.settings;
  const int ranks_of_stage = plan.loaded.config.degrees.ranks / settings.pp;
  std::map<int, std::vector<TimedTask>> by_stage;
  for (const Span& span : Tracer::spans())
    if (span.stream == "blocks" && span.rank % ranks_of_stage == 0)
      by_stage[span.rank / ranks_of_stage].push_back(task_of(span));
  Timeline timeline;
  double begin = 0, end = 0;
  for (auto& [stage, tasks] : by_stage) {
    timeline.stages.push_back(last_step(std::move(tasks), plan.request.steps));
    if (timeline.stages.back().empty()) continue;
    const double first = timeline.stages.back().front().begin;
    begin = begin == 0 ? first : std::min(begin, first);
    for (const TimedTask& task : timeline.stages.back()) end = std::max(end, task.end);
  }
  for (std::vector<TimedTask>& line : timeline.stages) {
    for (TimedTask& task : line) {
      task.begin = (task.begin - begin) / (end - begin) * wanted.end;
      task.end = (task.end - begin) / (end - begin) * wanted.end;
    }
  }
  timeline.end = end > begin ? wanted.end : 0;
  return timeline;
}

}  // namespace

void require_pipeline(const TrainPlan& plan) {
  if (plan.settings.pp > 1) return;
  throw_invalid(
      "--print-schedule draws a pipeline, and there is one stage; ask for more (--pp, or "
      "pipeline.stages of the configuration)");
}

void print_schedule(const TrainPlan& plan) {
  const Timeline timeline = planned(plan.settings);
  std::printf("schedule  %s\n", title(plan.settings, timeline).c_str());
  int stage = 0;
  for (std::string line : draw_timeline(timeline)) {
    if (line.size() > kColumns) line = line.substr(0, kColumns - 4) + " ...";
    std::printf("stage %-3d %s\n", stage++, line.c_str());
  }
  std::fflush(stdout);
}

void write_schedule(const TrainPlan& plan) {
  if (plan.schedule == nullptr) return;
  const Timeline timeline = planned(plan.settings);
  std::vector<TitledTimeline> pictures{{title(plan.settings, timeline), timeline}};
  if (Timeline run = measured(plan, timeline); run.end > 0)
    pictures.push_back({"as it ran, a box for each block", std::move(run)});
  plan.schedule->write(timeline_svg(pictures));
  plan.schedule->commit();
  std::printf("schedule  %s\n", plan.request.print_schedule.c_str());
}

}  // namespace zero3d::tools
