// A point in the order of some recorder (a stream, an I/O queue, the host) that others wait for.
// One type whoever records or waits. A value: copies name the same point.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

namespace zero3d {

class EventState;

class Event {
 public:
  Event() = default;  ///< Never recorded; waiting on it is an error (Error kHazard).
  /// For recorders that keep their points in memory of their own.
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {}

  bool recorded() const { return state_ != nullptr; }
  /// The recorder has passed the point. False for an event never recorded.
  bool done() const;
  /// Blocks the host until done and joins the recorder's order into the host's. Rethrows the first
  /// error of the work before the point; throws Error(kHazard) if never recorded, Error(kInternal)
  /// past the wait limit (300 s).
  void wait() const;

  /// For recorders: starts a new point, not yet passed; copies taken from here on name it.
  EventState& begin_record();
  /// For recorders and waiters; null when never recorded.
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

}  // namespace zero3d
