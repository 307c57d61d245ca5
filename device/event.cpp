// Events: a flag, the error that came before it, and how to wait for it.
#include "zero3d/device/event.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cpu/spin.h"
#include "zero3d/device/event_state.h"

namespace zero3d {
namespace {

/// Where those sleep who wait for events: few for all of them, since most events are passed before
/// anybody sleeps, and so need neither a lock nor a condition of their own.
struct Bed {
  std::mutex mutex;
  std::condition_variable passed;

  static Bed& of(const void* event) {
    constexpr std::size_t kBeds = 64;
    static Bed* const beds = new Bed[kBeds];  // never destroyed: threads may outlive main
    return beds[(reinterpret_cast<std::uintptr_t>(event) >> 6) % kBeds];
  }
};

}  // namespace

void EventState::complete(std::exception_ptr error) noexcept {
  error_ = std::move(error);
  done_.store(true);
  // Sequentially consistent, as in await: either this sees the sleeper or that one sees done_.
  if (sleepers_.load() == 0) return;
  Bed& bed = Bed::of(this);
  std::vector<std::function<void()>> next;
  {
    const std::lock_guard lock(bed.mutex);
    next.swap(next_);
  }
  bed.passed.notify_all();
  for (const std::function<void()>& call : next) call();
}

void EventState::then(std::function<void()> next) {
  {
    const std::lock_guard lock(Bed::of(this).mutex);
    sleepers_.fetch_add(1);
    if (!done_.load()) {
      next_.push_back(std::move(next));
      return;
    }
    sleepers_.fetch_sub(1);
  }
  next();
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
      Bed& bed = Bed::of(this);
      std::unique_lock lock(bed.mutex);
      sleepers_.fetch_add(1);
      const bool passed = bed.passed.wait_until(lock, std::chrono::system_clock::now() + limit,
                                                [this] { return done_.load(); });
      sleepers_.fetch_sub(1);
      if (passed) return;
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
