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

std::vector<std::shared_ptr<const Recorder>> EventState::chain() const {
  // Streams move on while this looks, so that what it sees may form a circle; a few links tell
  // enough.
  constexpr std::size_t kLinks = 16;
  std::vector<std::shared_ptr<const Recorder>> recorders;
  std::shared_ptr<const Recorder> next = recorder_;
  while (next != nullptr && recorders.size() < kLinks) {
    recorders.push_back(next);
    const std::shared_ptr<const EventState> awaited = next->awaited();
    next = awaited == nullptr || awaited->done() ? nullptr : awaited->recorder_;
  }
  return recorders;
}

void EventState::await(std::chrono::milliseconds limit) const {
  const auto reached = [this] { return done(); };
  if (recorder_ != nullptr && recorder_->is_meeting() ? spin(reached) : spin_until(reached)) return;
  const auto progress = [this] {
    std::uint64_t sum = 0;
    for (const auto& recorder : chain()) sum += recorder->progress();
    return sum;
  };
  std::uint64_t before = progress();
  for (;;) {
    {
      // The system clock: ThreadSanitizer does not know the condition variable's steady-clock wait.
      std::unique_lock lock(mutex_);
      if (passed_.wait_until(lock, std::chrono::system_clock::now() + limit,
                             [this] { return done(); }))
        return;
    }
    const std::uint64_t now = progress();
    if (now == before) break;
    before = now;
  }
  std::string who;
  for (const auto& recorder : chain())
    who += (who.empty() ? "" : ", which waits for ") + recorder->status();
  throw Error(ErrorKind::kInternal,
              concat("an event was not reached: no progress within ", limit.count(), " ms at ",
                     who.empty() ? "a recorder that gave no name" : who,
                     "; a task hangs, or what it waits for was never started"));
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
