// Sequences of calls and what each of them is answered: the whole bookkeeping of accumulation
// windows, as a table.
#include "zero3d/engine/accumulation_window.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr std::int64_t kTokens = 10;  // of each forward

/// Calls with their answers: of forward the number of the micro-batch, with "last"
/// when it ends the window; of step what the window was, if it ended; of a question yes or no;
/// after "!" a part of the message of a refusal.
struct Sequence {
  const char* what;
  int micro_batches;
  bool managed;
  const char* calls;
};

constexpr Sequence kSequences[] = {
    {"one micro-batch a window", 1, true,
     R"(start? = yes; forward = 0 last; start? = no; backward; start? = no; step = 1 of 10;
        start? = yes; forward = 0 last; backward; step = 1 of 10)"},
    {"two", 2, true,
     R"(boundary? = no; forward = 0; backward; step; start? = no; boundary? = yes;
        forward = 1 last; backward; step = 2 of 20; start? = yes; forward = 0)"},
    {"out of turn", 2, true,
     R"(backward ! backward() without a forward(); step ! step() without a backward();
        forward = 0; forward ! forward() between forward() and its backward();
        step ! step() between forward() and its backward();
        evaluate ! eval_batch() between forward() and its backward(); backward;
        backward ! backward() without a forward(); evaluate; step;
        step ! step() without a backward(); start? = no; forward = 1 last; backward;
        forward ! call step() first; forward ! call step() first; step = 2 of 20;
        step ! step() without a backward(); forward = 0)"},
    {"several backwards a step", 2, true,
     R"(forward = 0; backward; forward = 1; backward; step; forward = 2 last; backward;
        step = 3 of 30; start? = yes)"},
    {"left to the caller", 2, false,
     R"(boundary ! accumulation is not managed;
        no boundary ! accumulation is not managed; boundary? = yes; forward = 0;
        backward; forward = 1; backward; forward = 2;
        step ! step() between forward() and its backward(); backward; start? = no;
        step = 3 of 30; start? = yes; step ! step() without a backward(); forward = 0; backward;
        step = 1 of 10)"},
    {"a boundary by hand, before the forward", 3, true,
     R"(no boundary; forward = 0; backward; step; boundary; forward = 1 last; backward;
        forward ! call step() first; step = 2 of 20; start? = no; boundary? = yes;
        forward = 0 last)"},
    {"a boundary by hand, after the backward", 3, true,
     R"(no boundary; forward = 0; backward; boundary; step = 1 of 10; forward = 0 last;
        backward; no boundary; forward ! call step() first; step; forward ! call step() first;
        step ! step() without a backward())"},
    {"a scope", 2, true,
     R"(enter; enter ! no_sync inside another scope: they do not nest; boundary? = no;
        forward = 0; backward; step ! step() inside no_sync; forward = 1;
        step ! step() inside no_sync; backward; leave; boundary; forward = 2 last; backward;
        step = 3 of 30; enter; boundary? = no)"},
    {"a scope over a whole window, then its step", 2, true,
     R"(enter; forward = 0; backward; forward = 1; backward; leave; start? = no; boundary;
        step = 2 of 20)"},
    {"a scope that nothing was done in", 1, true,
     R"(enter; leave; step ! step() without a backward(); start? = yes; forward = 0 last)"},
    {"a scope, left to the caller", 1, false,
     R"(enter; boundary? = no; forward = 0; backward; leave; forward = 1; backward;
        step = 2 of 20)"},
    {"whole windows", 3, true,
     R"(whole; start? = no; boundary? = yes; step = 3 of 30; start? = yes; whole; step = 3 of 30;
        forward = 0; whole ! train_batch within an accumulation window; backward; step;
        whole ! train_batch within an accumulation window)"},
    {"whole windows, left to the caller", 3, false,
     R"(whole; start? = no; step = 3 of 30; whole; whole ! train_batch within; step = 3 of 30)"},
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
  if (call == "start?") return window.at_start() ? "yes" : "no";
  if (call == "boundary?") return window.at_boundary() ? "yes" : "no";
  if (call == "backward") {
    window.backward();
  } else if (call == "whole") {
    window.whole(3 * kTokens);
  } else if (call == "boundary" || call == "no boundary") {
    window.set_boundary(call == "boundary");
  } else if (call == "enter") {
    window.enter_scope("no_sync");
  } else if (call == "leave") {
    window.leave_scope();
  } else if (call == "evaluate") {
    window.require_no_forward("eval_batch()");
  } else {
    ADD_FAILURE() << "there is no call " << call;
  }
  return "";
}

/// `line` is a call, perhaps with " = answer" or " ! part of the refusal". Whether it was accepted.
bool expect(AccumulationWindow& window, const std::string& line) {
  const std::size_t mark = line.find_first_of("=!");
  const std::string call = line.substr(0, mark == std::string::npos ? mark : mark - 1);
  const std::string answer = mark == std::string::npos ? "" : line.substr(mark + 2);
  const bool refused = mark != std::string::npos && line[mark] == '!';
  try {
    EXPECT_EQ(perform(window, call), answer);
    EXPECT_FALSE(refused);
    return true;
  } catch (const Error& error) {
    EXPECT_TRUE(refused) << error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find(answer), std::string::npos) << error.what();
    return false;
  }
}

TEST(AccumulationWindow, AnswersEverySequence) {
  for (const Sequence& sequence : kSequences) {
    RunState state;
    AccumulationWindow window(state, sequence.micro_batches, sequence.managed);
    std::int64_t steps = 0;
    std::istringstream calls(sequence.calls);
    for (std::string line; std::getline(calls >> std::ws, line, ';');) {
      SCOPED_TRACE(concat(sequence.what, ": ", line));
      const bool accepted = expect(window, line);
      steps += accepted && line.starts_with("step");
      if (accepted && line.starts_with("whole") && sequence.managed)
        steps += sequence.micro_batches - 1;
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
