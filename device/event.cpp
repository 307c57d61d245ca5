// Events: a flag, the error that came before it, and how to wait for it.
#include "zero3d/device/event.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cpu/spin.h"
#include "zero3d/device/event_state.h"
#include "zero3d/device/point_watcher.h"

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

void EventState::complete(std::exception_ptr error) noexcept { pass(std::move(error)); }

void EventState::hand_on(std::shared_ptr<NativePoint> point, std::exception_ptr error) noexcept {
  native_ = {std::move(point), std::move(error)};
  handed_on_.store(true);
  // As in pass(): either this sees who waits, or they see that the point is handed on.
  if (sleepers_.load() == 0) return;
  { const std::lock_guard lock(Bed::of(this).mutex); }
  Bed::of(this).passed.notify_all();
  watch();
}

bool EventState::poll() const noexcept {
  std::exception_ptr error = native_.error;
  try {
    if (!native_.point->passed()) return false;
  } catch (...) {
    if (error == nullptr) error = std::current_exception();
  }
  // That a point is passed is found out by who asks: the state itself is none of theirs.
  if (!passing_.exchange(true)) const_cast<EventState*>(this)->pass(std::move(error));
  return done_.load(std::memory_order_acquire);
}

void EventState::watch() const { watch_point(shared_from_this()); }

void EventState::pass(std::exception_ptr error) noexcept {
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
      next = nullptr;
    } else {
      sleepers_.fetch_sub(1);
    }
  }
  if (next) return next();
  if (handed_on_.load()) watch();
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

void EventState::await(std::chrono::milliseconds limit) const { await(limit, false); }
void EventState::await_hand_on(std::chrono::milliseconds limit) const { await(limit, true); }

void EventState::await(std::chrono::milliseconds limit, bool handed_on_suffices) const {
  const auto reached = [this, handed_on_suffices] {
    return handed_on_suffices ? handed_on_.load() || done_.load() : done();
  };
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
      if (handed_on_.load() && !handed_on_suffices) {
        lock.unlock();  // whoever watches it may pass it at once
        watch();
        lock.lock();
      }
      const bool passed = bed.passed.wait_until(
          lock, std::chrono::system_clock::now() + limit,
          [&] { return done_.load() || (handed_on_suffices && handed_on_.load()); });
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
