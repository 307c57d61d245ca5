#include "zero3d/parallel/comm/comm_world.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

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

void CommWorld::add(WaitingRoom* room) {
  const std::lock_guard lock(mutex_);
  rooms_.insert(room);
}

void CommWorld::remove(WaitingRoom* room) {
  const std::lock_guard lock(mutex_);
  rooms_.erase(room);
}

void CommWorld::watch() {
  const auto period = std::max(timeout_ / 8, std::chrono::milliseconds(1));
  std::unique_lock lock(mutex_);
  while (!ended_ && !failure_.happened()) {
    // The system clock: ThreadSanitizer does not know the condition variable's steady-clock wait.
    ending_.wait_until(lock, std::chrono::system_clock::now() + period);
    if (ended_) return;
    const auto late = find_late();
    if (!late) continue;
    lock.unlock();
    const std::string message = concat(late->operation, ": rank ", late->rank, " waited ",
                                       timeout_.count(), " ms for ", late->missing);
    fail(late->rank, std::make_exception_ptr(CommError(late->rank, late->operation, message)));
    lock.lock();
  }
}

std::optional<WaitingRoom::Late> CommWorld::find_late() {
  const Clock::time_point limit = Clock::now() - timeout_;
  for (WaitingRoom* room : rooms_)
    if (auto late = room->late(limit)) return late;
  return std::nullopt;
}

}  // namespace zero3d::detail
