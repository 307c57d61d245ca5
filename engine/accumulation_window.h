// Which call of forward, backward and step may come next, and when they end an accumulation window:
// bookkeeping alone, which runs nothing. Every call throws Error(kInvalid) that says what to do
// when it is not its turn, and then changes nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "zero3d/engine/run_state.h"

namespace zero3d {

class AccumulationWindow {
 public:
  /// `micro_batches` of a window; `managed` false leaves to the caller how many, and every step()
  /// ends one. Counts micro_steps in `state`, which must outlive this; a window begins at `first`
  /// of them.
  AccumulationWindow(RunState& state, std::int64_t micro_batches, bool managed,
                     std::int64_t first = 0)
      : state_(state), micro_batches_(micro_batches), first_(first), managed_(managed) {}

  struct MicroStep {
    int index = 0;      ///< Of the micro-batch in its window.
    bool last = false;  ///< It is known to end the window.
  };
  /// What a forward now would be, ...
  MicroStep next_forward() const;
  /// ... and that it has been, of `tokens` tokens.
  void forward(const MicroStep& step, std::int64_t tokens);
  void backward();
  /// Forwards and backwards of a whole window have been, of `tokens` tokens, from at_start() on:
  /// its step() is due.
  void whole(std::int64_t tokens);
  struct Ended {
    int micro_batches = 0;
    std::int64_t tokens = 0;
  };
  /// What the window was when this step ends it.
  std::optional<Ended> step();

  /// Whether a step() now ends the window.
  bool at_boundary() const;
  void set_boundary(bool boundary);
  /// A scope has no boundary inside; `scope` is its name for people.
  void enter_scope(const char* scope);
  void leave_scope() { in_scope_ = false; }

  /// For calls that need every forward to have had its backward.
  void require_no_forward(const char* call) const;
  /// Nothing of the next window has been done: the only place to take a whole one, or to save.
  bool at_start() const;
  void require_start() const;

 private:
  RunState& state_;
  std::int64_t micro_batches_;
  std::int64_t first_;
  bool managed_;
  bool forward_open_ = false;  ///< Its backward is due.
  bool last_ = false;          ///< The last forward was that of the window's last micro-batch.
  bool in_scope_ = false;
  std::optional<bool> boundary_;  ///< Set by hand.
  int index_ = 0;                 ///< Backwards in this window.
  int stepped_ = 0;               ///< The same at the last step().
  std::int64_t tokens_ = 0;
};

}  // namespace zero3d
