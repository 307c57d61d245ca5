#include "zero3d/parallel/comm/comm_world.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/parallel/comm/call.h"

namespace zero3d::detail {

CommWorld::CommWorld(int size, std::chrono::milliseconds timeout) : timeout_(timeout) {
  if (size > 1) watcher_ = std::thread([this] { watch(); });
}

CommWorld::~CommWorld() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ending_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void CommWorld::fail(int rank, const std::exception_ptr& cause) noexcept {
  if (!failure_.set(rank, cause)) return;
  const std::lock_guard lock(mutex_);
  for (WaitingRoom* room : rooms_) room->end_waits();
}

void CommWorld::set_timeout(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    timeout_ = timeout;
  }
  ending_.notify_all();
}

void CommWorld::add(WaitingRoom* room) {
  const std::lock_guard lock(mutex_);
  rooms_.insert(room);
}

void CommWorld::remove(WaitingRoom* room) {
  const std::lock_guard lock(mutex_);
  rooms_.erase(room);
}

void CommWorld::watch() {
  std::unique_lock lock(mutex_);
  Clock::time_point told;  // of the wait that the log knows of: when it began
  while (!ended_ && !failure_.happened()) {
    const auto period = std::max(timeout_ / 4 / kWaitToTell, std::chrono::milliseconds(1));
    // The system clock: ThreadSanitizer does not know the condition variable's steady-clock wait.
    ending_.wait_until(lock, std::chrono::system_clock::now() + period);
    if (ended_) return;
    const std::chrono::milliseconds limit = timeout_;
    if (const auto late = find_late(limit)) {
      lock.unlock();
      fail(late->rank, std::make_exception_ptr(CommError(
                           late->rank, late->operation,
                           describe_wait(late->rank, limit, late->operation, late->missing))));
      lock.lock();
    } else if (limit < kLimitToTell) {
      continue;
    } else if (const auto slow = find_late(limit / kWaitToTell); slow && slow->since != told) {
      told = slow->since;
      log_warning(describe_wait(slow->rank, limit / kWaitToTell, slow->operation, slow->missing));
    }
  }
}

std::optional<WaitingRoom::Late> CommWorld::find_late(std::chrono::milliseconds limit) {
  const Clock::time_point begun = Clock::now() - limit;
  for (WaitingRoom* room : rooms_)
    if (auto late = room->late(begun)) return late;
  return std::nullopt;
}

}  // namespace zero3d::detail
