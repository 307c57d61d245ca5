// Events: a flag, the error that came before it, and how to wait for it.
#include "zero3d/device/event.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cpu/spin.h"
#include "zero3d/device/event_state.h"

namespace zero3d {

void EventState::complete(std::exception_ptr error) noexcept {
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
  }
  passed_.notify_all();
}

void EventState::await(std::chrono::milliseconds limit) const {
  if (spin_until([this] { return done(); })) return;
  std::unique_lock lock(mutex_);
  std::uint64_t progress = recorder_progress();
  // The system clock: ThreadSanitizer does not know the condition variable's steady-clock wait.
  while (!passed_.wait_until(lock, std::chrono::system_clock::now() + limit,
                             [this] { return done(); })) {
    const std::uint64_t now = recorder_progress();
    if (now != progress) {
      progress = now;
      continue;
    }
    throw Error(
        ErrorKind::kInternal,
        concat("an event was not reached within ", limit.count(), " ms: ", recorder_status(),
               " makes no progress; a task hangs, or its recorder was never started"));
  }
}

std::string EventState::recorder_status() const {
  return recorder_ ? recorder_->status() : "a recorder that gave no name";
}

std::uint64_t EventState::recorder_progress() const {
  return recorder_ ? recorder_->progress() : 0;
}

bool Event::done() const { return state_ != nullptr && state_->done(); }

void Event::wait() const {
  if (state_ == nullptr) {
    throw Error(ErrorKind::kHazard,
                "the host waits on an event that was never recorded; record it on a stream first");
  }
  state_->await();
  if (!InsideTask::active()) state_->order().observe();
  if (state_->error()) std::rethrow_exception(state_->error());
}

EventState& Event::begin_record() {
  state_ = std::make_shared<EventState>();
  return *state_;
}

}  // namespace zero3d
