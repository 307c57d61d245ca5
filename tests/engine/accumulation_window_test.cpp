// Sequences of calls and what each of them is answered: the whole bookkeeping of accumulation
// windows, as a table.
#include "zero3d/engine/accumulation_window.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr std::int64_t kTokens = 10;  // of each forward

/// A call and its answer: of forward the number of the micro-batch, with "last" when it ends the
/// window; of step "" or what the window was; of the others ""; a part of the message when refused.
struct Call {
  std::string call;
  std::string answer;
};

struct Sequence {
  const char* what;
  int micro_batches;
  bool managed;
  std::vector<Call> calls;
};

std::string perform(AccumulationWindow& window, const std::string& call) {
  if (call == "forward") {
    const AccumulationWindow::MicroStep step = window.next_forward();
    window.forward(step, kTokens);
    return concat(step.index, step.last ? " last" : "");
  }
  if (call == "step") {
    const auto ended = window.step();
    return ended ? concat(ended->micro_batches, " of ", ended->tokens) : "";
  }
  if (call == "backward") window.backward();
  if (call == "boundary") window.set_boundary(true);
  if (call == "no boundary") window.set_boundary(false);
  if (call == "enter") window.enter_scope("no_sync");
  if (call == "leave") window.leave_scope();
  if (call == "evaluate") window.require_no_forward("eval_batch()");
  if (call == "start?") return window.at_start() ? "yes" : "no";
  if (call == "boundary?") return window.at_boundary() ? "yes" : "no";
  return "";
}

const Call kBackward{"backward", ""};
const Call kStep{"step", ""};
constexpr char kOpen[] = "between forward() and its backward()";
constexpr char kStepFirst[] = "call step() first";

const std::vector<Sequence>& sequences() {
  static const std::vector<Sequence> all = {
      {"one micro-batch a window",
       1,
       true,
       {{"start?", "yes"},
        {"forward", "0 last"},
        {"start?", "no"},
        kBackward,
        {"start?", "no"},
        {"step", "1 of 10"},
        {"start?", "yes"},
        {"forward", "0 last"},
        kBackward,
        {"step", "1 of 10"}}},
      {"two",
       2,
       true,
       {{"boundary?", "no"},
        {"forward", "0"},
        kBackward,
        kStep,
        {"start?", "no"},
        {"boundary?", "yes"},
        {"forward", "1 last"},
        kBackward,
        {"step", "2 of 20"},
        {"start?", "yes"},
        {"forward", "0"}}},
      {"out of turn",
       2,
       true,
       {{"backward", "backward() without a forward()"},
        {"step", "without a backward()"},
        {"forward", "0"},
        {"forward", concat("forward() ", kOpen)},
        {"step", concat("step() ", kOpen)},
        {"evaluate", concat("eval_batch() ", kOpen)},
        kBackward,
        {"backward", "backward() without a forward()"},
        {"evaluate", ""},
        kStep,
        {"step", "without a backward()"},
        {"start?", "no"},
        {"forward", "1 last"},
        kBackward,
        {"forward", kStepFirst},
        {"forward", kStepFirst},
        {"step", "2 of 20"},
        {"step", "without a backward()"},
        {"forward", "0"}}},
      {"several backwards a step",
       2,
       true,
       {{"forward", "0"},
        kBackward,
        {"forward", "1"},
        kBackward,
        kStep,
        {"forward", "2 last"},
        kBackward,
        {"step", "3 of 30"},
        {"start?", "yes"}}},
      {"left to the caller",
       2,
       false,
       {{"boundary", "managed_gradient_accumulation is false"},
        {"no boundary", "managed_gradient_accumulation is false"},
        {"boundary?", "yes"},
        {"forward", "0"},
        kBackward,
        {"forward", "1"},
        kBackward,
        {"forward", "2"},
        {"step", concat("step() ", kOpen)},
        kBackward,
        {"start?", "no"},
        {"step", "3 of 30"},
        {"start?", "yes"},
        {"step", "without a backward()"},
        {"forward", "0"},
        kBackward,
        {"step", "1 of 10"}}},
      {"a boundary by hand, before the forward",
       3,
       true,
       {{"no boundary", ""},
        {"forward", "0"},
        kBackward,
        kStep,
        {"boundary", ""},
        {"forward", "1 last"},
        kBackward,
        {"forward", kStepFirst},
        {"step", "2 of 20"},
        {"start?", "no"},
        {"boundary?", "yes"},
        {"forward", "0 last"}}},
      {"a boundary by hand, after the backward",
       3,
       true,
       {{"no boundary", ""},
        {"forward", "0"},
        kBackward,
        {"boundary", ""},
        {"step", "1 of 10"},
        {"forward", "0 last"},
        kBackward,
        {"no boundary", ""},
        {"forward", kStepFirst},
        kStep,
        {"forward", kStepFirst},
        {"step", "without a backward()"}}},
      {"a scope",
       2,
       true,
       {{"enter", ""},
        {"enter", "no_sync inside another scope: they do not nest"},
        {"boundary?", "no"},
        {"forward", "0"},
        kBackward,
        {"step", "step() inside no_sync"},
        {"forward", "1"},
        {"step", "step() inside no_sync"},
        kBackward,
        {"leave", ""},
        {"boundary", ""},
        {"forward", "2 last"},
        kBackward,
        {"step", "3 of 30"},
        {"enter", ""},
        {"boundary?", "no"}}},
      {"a scope over a whole window, then its step",
       2,
       true,
       {{"enter", ""},
        {"forward", "0"},
        kBackward,
        {"forward", "1"},
        kBackward,
        {"leave", ""},
        {"start?", "no"},
        {"boundary", ""},
        {"step", "2 of 20"}}},
      {"a scope that nothing was done in",
       1,
       true,
       {{"enter", ""},
        {"leave", ""},
        {"step", "without a backward()"},
        {"start?", "yes"},
        {"forward", "0 last"}}},
      {"a scope, left to the caller",
       1,
       false,
       {{"enter", ""},
        {"boundary?", "no"},
        {"forward", "0"},
        kBackward,
        {"leave", ""},
        {"forward", "1"},
        kBackward,
        {"step", "2 of 20"}}},
  };
  return all;
}

TEST(AccumulationWindow, AnswersEverySequence) {
  for (const Sequence& sequence : sequences()) {
    RunState state;
    AccumulationWindow window(state, sequence.micro_batches, sequence.managed);
    std::int64_t steps = 0;
    for (std::size_t i = 0; i < sequence.calls.size(); ++i) {
      const auto& [call, answer] = sequence.calls[i];
      SCOPED_TRACE(concat(sequence.what, ", call ", i, ": ", call));
      try {
        const std::string found = perform(window, call);
        EXPECT_EQ(found, answer);
        steps += call == "step";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
        EXPECT_FALSE(answer.empty()) << error.what();
        EXPECT_NE(std::string(error.what()).find(answer), std::string::npos) << error.what();
      }
      EXPECT_EQ(state.micro_steps, steps);
    }
  }
}

TEST(AccumulationWindow, GoesOnFromARestoredState) {
  RunState state;
  state.micro_steps = 5;
  AccumulationWindow window(state, 3, true);
  EXPECT_FALSE(window.at_start());
  EXPECT_TRUE(window.at_boundary());
  EXPECT_TRUE(window.next_forward().last);
  state.micro_steps = 6;
  EXPECT_TRUE(window.at_start());
  EXPECT_FALSE(window.next_forward().last);
}

}  // namespace
}  // namespace zero3d
