// What stands behind an Event: one point of one recorder. For those who implement recorders
// (streams, I/O queues) and waiters; users of a device need only event.h.
//
// A recorder calls Event::begin_record(), names itself with set_recorder(), states what the point
// comes after with set_order() (for the hazard checker; Device::declare does it), and calls
// complete() exactly once when it has passed the point, or hand_on() exactly once when a device
// will pass it by itself. All members are thread-safe except the two setters, which belong to the
// recording thread before the event is handed to anyone else.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/device/event.h"
#include "zero3d/device/order.h"

namespace zero3d {

class EventState;

/// Who records: asked only by waits that take long.
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// "stream 'compute' of cpu of rank 0, at task 'layer norm'".
  virtual std::string status() const = 0;
  /// Grows while work gets done; a wait gives up only after a whole limit without growth.
  virtual std::uint64_t progress() const = 0;
  /// Whether a point of it is worth a longer busy wait: a peer on another core is on its way to it.
  virtual bool is_meeting() const { return false; }
  /// What the recorder itself waits for now; null if nothing.
  virtual std::shared_ptr<const EventState> awaited() const { return nullptr; }
};

/// A point in a device's own queue.
class NativePoint {
 public:
  virtual ~NativePoint() = default;
  /// Without waiting. Throws what the device says of work that failed.
  virtual bool passed() = 0;
};

class EventState : public std::enable_shared_from_this<EventState> {
 public:
  static constexpr std::chrono::milliseconds kWaitLimit{300000};

  void set_recorder(std::shared_ptr<const Recorder> recorder) { recorder_ = std::move(recorder); }
  void set_order(OrderClock order) { order_ = std::move(order); }
  const OrderClock& order() const { return order_; }
  /// The point is passed; `error` is the first error of the work before it.
  void complete(std::exception_ptr error = nullptr) noexcept;

  /// The recorder has handed the point to a device, and all before it: it is done once `point` is
  /// passed. `error` is the first error of what did not get that far. For states that Event owns.
  void hand_on(std::shared_ptr<NativePoint> point, std::exception_ptr error) noexcept;

  bool done() const noexcept {
    return done_.load(std::memory_order_acquire) ||
           (handed_on_.load(std::memory_order_acquire) && poll());
  }
  /// What the point was handed on as, with the error of then; null before, and for others. Waits
  /// for neither.
  struct HandedOn {
    std::shared_ptr<NativePoint> point;
    std::exception_ptr error;
  };
  HandedOn handed_on() const {
    return handed_on_.load(std::memory_order_acquire) ? native_ : HandedOn{};
  }
  /// Blocks the calling thread until done or handed on; otherwise as await().
  void await_hand_on(std::chrono::milliseconds limit = kWaitLimit) const;
  /// Blocks the calling thread until done. Throws Error(kInternal) naming the recorder when it made
  /// no progress for `limit`. Does not throw error().
  void await(std::chrono::milliseconds limit = kWaitLimit) const;
  /// Calls `next` once the point is passed: at once if it is, else on the thread that passes it.
  /// It neither throws nor blocks. For waiters that must not block either, such as I/O queues.
  void then(std::function<void()> next);
  /// The first error of the work before the point, null if none; only once done.
  std::exception_ptr error() const { return error_; }

 private:
  /// The recorders that this point now depends on, nearest first.
  std::vector<std::shared_ptr<const Recorder>> chain() const;
  void await(std::chrono::milliseconds limit, bool handed_on_suffices) const;
  /// Completes a point handed on, if it is passed.
  bool poll() const noexcept;
  /// Has the point polled until it is done: somebody waits who does not.
  void watch() const;
  void pass(std::exception_ptr error) noexcept;

  std::atomic<bool> done_{false};
  std::atomic<bool> handed_on_{false};
  mutable std::atomic<bool> passing_{false};  ///< Who sets it completes.
  HandedOn native_;
  mutable std::atomic<int> sleepers_{0};  ///< Threads that sleep, and calls in next_.
  std::vector<std::function<void()>> next_;
  std::exception_ptr error_;
  std::shared_ptr<const Recorder> recorder_;
  OrderClock order_;
};

}  // namespace zero3d
