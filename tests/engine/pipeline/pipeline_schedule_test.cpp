// Schedules of pipelines: that they end, in the order that the numerics ask for, whatever the
// numbers of stages, chunks and micro-batches; and that bubbles and memory are what the formulas
// say, tick for tick.
#include "zero3d/engine/pipeline/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/pipeline/stage_links.h"
#include "zero3d/engine/pipeline/stage_plan.h"
#include "zero3d/engine/pipeline/timeline.h"

namespace zero3d::test {
namespace {

struct Case {
  PipelineSchedule schedule = PipelineSchedule::gpipe;
  int stages = 1;
  int virtual_stages = 1;
  int micro_batches = 1;
  PipelineShape shape() const { return pipeline_shape(schedule, stages, virtual_stages); }
  std::vector<std::vector<PipelineTask>> plan() const {
    return plan_pipeline(schedule, shape(), micro_batches);
  }
  std::string text() const {
    return concat(name_of(schedule), ", ", stages, " stages of ", virtual_stages, ", ",
                  micro_batches, " micro-batches");
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int stages = 1; stages <= 6; ++stages) {
    for (const int micro_batches : {1, 2, 3, 4, 5, 7, 8, 12, 17}) {
      using enum PipelineSchedule;
      for (const PipelineSchedule one : {gpipe, one_forward_one_backward, zero_bubble_h1})
        cases.push_back({one, stages, 1, micro_batches});
      for (const int chunks : {2, 3, 4})
        cases.push_back({interleaved, stages, chunks, micro_batches});
      cases.push_back({zero_bubble_v, stages, 2, micro_batches});
    }
  }
  return cases;
}

/// Of the whole model of `segments` times two blocks.
StageBlocks stage_of_case(const Case& c, int stage, int backward_down_to = 0) {
  std::vector<int> bounds;
  for (int i = 0; i <= c.shape().segments(); ++i) bounds.push_back(2 * i);
  return stage_blocks(c.shape(), bounds, backward_down_to, stage);
}

TEST(PipelineSchedule, EndsAndIsAStepOnEveryStage) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.text());
    const auto plan = c.plan();
    ASSERT_EQ(static_cast<int>(plan.size()), c.stages);
    const Timeline timeline = play_pipeline(c.shape(), plan, {});
    for (int stage = 0; stage < c.stages; ++stage) {
      EXPECT_EQ(timeline.busy(stage), 3.0 * c.shape().chunks * c.micro_batches);
      for (const int down_to : {0, 1, 3}) {
        const StageBlocks blocks = stage_of_case(c, stage, down_to);
        require_step(stage_ops(plan[static_cast<std::size_t>(stage)], blocks), blocks,
                     c.micro_batches);
      }
    }
  }
}

/// What goes from one stage to another comes off there in the order in which it was sent.
TEST(PipelineSchedule, EverySendHasItsReceiveInTheSameOrder) {
  using Message = std::pair<int, int>;  // segment, micro-batch
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.text());
    const PipelineShape shape = c.shape();
    const auto plan = c.plan();
    for (const int down_to : {0, 3}) {
      std::map<StageFlow, std::vector<Message>> sent;
      std::map<StageFlow, std::vector<Message>> received;
      for (int stage = 0; stage < c.stages; ++stage) {
        const StageBlocks blocks = stage_of_case(c, stage, down_to);
        for (const Op& op : stage_ops(plan[static_cast<std::size_t>(stage)], blocks)) {
          if (!is_transfer(op.kind)) continue;
          const Chunk& chunk = blocks.chunk(op.chunk);
          const int segment = shape.segment_of(stage, op.chunk);
          switch (op.kind) {
            case OpKind::send_values:
              sent[{false, stage, chunk.to}].emplace_back(segment + 1, op.micro_batch);
              break;
            case OpKind::receive_values:
              received[{false, chunk.from, stage}].emplace_back(segment, op.micro_batch);
              break;
            case OpKind::send_gradients:
              sent[{true, stage, chunk.from}].emplace_back(segment - 1, op.micro_batch);
              break;
            default:
              received[{true, chunk.to, stage}].emplace_back(segment, op.micro_batch);
          }
        }
      }
      EXPECT_EQ(sent, received);
      std::size_t flows = 0;
      for (const auto& round : flow_rounds(shape)) {
        for (const StageFlow& flow : round) flows += sent.contains(flow) ? 1 : 0;
      }
      EXPECT_EQ(flows, sent.size()) << "every flow has its communicator";
    }
  }
}

/// What comes is asked for a task ahead, and no earlier: one arrival is used while the next comes.
TEST(PipelineSchedule, TwoArrivalsAreThereAtATime) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.text());
    const auto plan = c.plan();
    for (int stage = 0; stage < c.stages; ++stage) {
      const StageBlocks blocks = stage_of_case(c, stage);
      int waiting = 0, most = 0;
      for (const Op& op : stage_ops(plan[static_cast<std::size_t>(stage)], blocks)) {
        const Chunk& chunk = blocks.chunk(op.chunk);
        const bool receives =
            op.kind == OpKind::receive_values || op.kind == OpKind::receive_gradients;
        const auto elsewhere = [&](int other) { return other >= 0 && other != stage; };
        if (receives) most = std::max(most, ++waiting);
        if (op.kind == OpKind::forward && op.block == chunk.begin && elsewhere(chunk.from))
          --waiting;
        if (begins_gradients(op.kind) && op.block == chunk.end - 1 && elsewhere(chunk.to))
          --waiting;
      }
      EXPECT_EQ(waiting, 0);
      EXPECT_LE(most, 2);
    }
  }
}

TEST(PipelineSchedule, BubblesAreThoseOfTheFormulas) {
  using enum PipelineSchedule;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 24; ++m) {
      for (const PipelineSchedule one : {gpipe, one_forward_one_backward}) {
        const Case c{one, p, 1, m};
        const Timeline timeline = play_pipeline(c.shape(), c.plan(), {});
        EXPECT_EQ(timeline.end, 3 * (m + p - 1)) << c.text();
        EXPECT_NEAR(timeline.bubble(), (p - 1.0) / (m + p - 1), 1e-12) << c.text();
      }
      for (const int v : {2, 3, 4}) {
        const Case c{interleaved, p, v, m};
        if (m % p != 0) continue;
        const Timeline timeline = play_pipeline(c.shape(), c.plan(), {});
        EXPECT_EQ(timeline.end, 3 * (v * m + p - 1)) << c.text();
        EXPECT_NEAR(timeline.bubble(), (p - 1.0) / (v * m + p - 1), 1e-12) << c.text();
      }
      if (m < p) continue;
      const Case h1{zero_bubble_h1, p, 1, m};
      EXPECT_EQ(play_pipeline(h1.shape(), h1.plan(), {}).end, 3 * m + p - 1)
          << h1.text() << ": p - 1 forwards, a third of 1F1B's";
    }
  }
}

TEST(PipelineSchedule, AFoldedPipelineNeverWaitsInItsSteadyState) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p; m <= 6 * p; ++m) {
      const Case c{PipelineSchedule::zero_bubble_v, p, 2, m};
      const Timeline timeline = play_pipeline(c.shape(), c.plan(), {});
      for (const std::vector<TimedTask>& line : timeline.stages) {
        const auto last = std::find_if(line.rbegin(), line.rend(), [](const TimedTask& task) {
          return task.task.kind == TaskKind::forward;
        });
        double busy = 0;
        for (auto task = line.begin(); task != last.base(); ++task) busy += task->end - task->begin;
        EXPECT_EQ(last->end - line.front().begin, busy) << c.text();
      }
      EXPECT_LE(timeline.end, 6 * m + 2 * (p - 1)) << c.text() << ": no longer than ZB-H1";
    }
  }
}

TEST(PipelineSchedule, HoldsAtMostSoManyMicroBatches) {
  for (const Case& c : all_cases()) {
    const auto plan = c.plan();
    for (int stage = 0; stage < c.stages; ++stage) {
      const int peak = peak_in_flight(plan[static_cast<std::size_t>(stage)]);
      const int m = c.micro_batches;
      switch (c.schedule) {
        case PipelineSchedule::gpipe:
          EXPECT_EQ(peak, m) << c.text();
          break;
        case PipelineSchedule::one_forward_one_backward:
          EXPECT_EQ(peak, std::min(m, c.stages - stage)) << c.text();
          break;
        case PipelineSchedule::zero_bubble_h1:
          EXPECT_LE(peak, std::min(m, c.stages)) << c.text();
          break;
        case PipelineSchedule::zero_bubble_v:
          EXPECT_LE(peak, std::min(2 * m, 2 * c.stages)) << c.text();
          break;
        default:
          EXPECT_LE(peak, std::min(c.virtual_stages * m,
                                   2 * (c.stages - stage) - 1 + (c.virtual_stages - 1) * c.stages))
              << c.text();
      }
    }
  }
}

TEST(PipelineSchedule, IsNamedAsItIsParsed) {
  using enum PipelineSchedule;
  for (const PipelineSchedule one :
       {gpipe, one_forward_one_backward, interleaved, zero_bubble_h1, zero_bubble_v})
    EXPECT_EQ(parse_pipeline_schedule(name_of(one)), one);
  EXPECT_THROW(parse_pipeline_schedule("1F1B"), Error);
  EXPECT_EQ(pipeline_shape(interleaved, 4, 0).chunks, 2);
  EXPECT_THROW(pipeline_shape(gpipe, 4, 2), Error);
  EXPECT_THROW(pipeline_shape(interleaved, 4, 1), Error);
  EXPECT_THROW(pipeline_shape(zero_bubble_v, 4, 3), Error);
}

TEST(Timeline, RefusesWhatNeverEnds) {
  const PipelineShape shape{2, 1, false};
  std::vector<std::vector<PipelineTask>> plan = plan_pipeline(PipelineSchedule::gpipe, shape, 2);
  std::swap(plan[1][0], plan[1][2]);
  try {
    play_pipeline(shape, plan, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("never ends"), std::string::npos) << error.what();
  }
}

TEST(Timeline, IsDrawn) {
  const PipelineShape shape{2, 1, false};
  const auto plan = plan_pipeline(PipelineSchedule::one_forward_one_backward, shape, 2);
  const std::vector<std::string> lines = draw_timeline(play_pipeline(shape, plan, {}));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "F0 F1 .  .  B0 -  .  B1 -  ");
}

}  // namespace
}  // namespace zero3d::test
