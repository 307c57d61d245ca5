// Why a stream drops a task unrun, for what the task owned: told to destructors that run on the
// stream's thread at that moment, since a task that never ran cannot be told by other means.
#pragma once

#include <exception>
#include <string>

namespace zero3d {

/// While one exists on a thread, tasks destroyed there are dropped because of `error`.
class DroppingTasks {
 public:
  explicit DroppingTasks(const std::exception_ptr& error) noexcept;
  ~DroppingTasks();
  DroppingTasks(const DroppingTasks&) = delete;
  DroppingTasks& operator=(const DroppingTasks&) = delete;

  /// The innermost scope's error in words; "" outside any.
  static std::string cause();

 private:
  const std::exception_ptr* before_;
};

}  // namespace zero3d
