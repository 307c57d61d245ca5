// Notices an enqueued operation that never ran. Internal to the communicators.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "zero3d/device/dropped_task.h"

namespace zero3d::detail {

/// Shared by the copies of a task. Calls `on_drop` when the last copy is destroyed and none has
/// started: the stream refused it, or failed before it, and the peers would wait for it.
class Ticket {
 public:
  Ticket(std::string operation, std::string stream, std::function<void(const std::string&)> on_drop)
      : operation_(std::move(operation)),
        stream_(std::move(stream)),
        on_drop_(std::move(on_drop)) {}
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() {
    if (started_) return;
    const std::string cause = DroppingTasks::cause();
    on_drop_("stream '" + stream_ + "' never ran " + operation_ +
             (cause.empty() ? ": it refused it, or work before it had failed"
                            : ", since work before it had failed: " + cause));
  }
  void start() { started_ = true; }

 private:
  const std::string operation_;
  const std::string stream_;
  const std::function<void(const std::string&)> on_drop_;
  bool started_ = false;
};

}  // namespace zero3d::detail
