// A device's own queue behind a stream: the stream's worker thread hands work on to it, in order,
// and goes on without waiting. For those who implement devices.
//
// What has been handed on never waits for a thread of this process: the worker first waits for what
// only threads do, such as points of I/O queues. So a queue always empties by itself, or for what
// other ranks hand on.
#pragma once

#include <memory>

#include "zero3d/device/event_state.h"

namespace zero3d {

/// Called by the stream's worker alone. Each throws what the device says of work that failed.
class NativeQueue {
 public:
  virtual ~NativeQueue() = default;
  /// Before everything else: what the thread needs to work with the device.
  virtual void enter() = 0;
  /// Blocks until all that was handed on is over.
  virtual void settle() = 0;
  /// The same at the end, but throws only what no point of the queue has told.
  virtual void finish() = 0;
  /// What is handed on from here on comes after the point. False when it is no point of this kind
  /// of queue; then nothing has happened.
  virtual bool wait(NativePoint& point) = 0;
  /// A point after all that was handed on.
  virtual std::shared_ptr<NativePoint> record() = 0;
};

}  // namespace zero3d
