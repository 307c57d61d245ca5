#include "zero3d/device/dropped_task.h"

namespace zero3d {
namespace {

thread_local const std::exception_ptr* current = nullptr;

}  // namespace

DroppingTasks::DroppingTasks(const std::exception_ptr& error) noexcept : before_(current) {
  current = &error;
}

DroppingTasks::~DroppingTasks() { current = before_; }

std::string DroppingTasks::cause() {
  if (current == nullptr || *current == nullptr) return "";
  try {
    std::rethrow_exception(*current);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace zero3d
