// How one task runs: error state, jitter, trace span, and what the stream reports about itself.
#include <chrono>
#include <thread>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/device/cpu/cpu_stream.h"

namespace zero3d {

void StreamStatus::begin_task(const std::string& what) {
  running_.store(true, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  task_ = what;
}

void StreamStatus::end_task() {
  running_.store(false, std::memory_order_relaxed);
  finished_.fetch_add(1, std::memory_order_relaxed);
}

void StreamStatus::set_awaited(std::shared_ptr<const EventState> awaited) {
  std::lock_guard lock(mutex_);
  if (awaited == nullptr) ++finished_;
  awaited_ = std::move(awaited);
}

std::string StreamStatus::status() const {
  std::lock_guard lock(mutex_);
  if (task_.empty()) return concat("stream '", stream_, "' of ", device_, " before its first task");
  return concat("stream '", stream_, "' of ", device_, running_ ? " in task '" : " after task '",
                task_, "'");
}

std::uint64_t StreamStatus::progress() const { return finished_.load(std::memory_order_relaxed); }

std::shared_ptr<const EventState> StreamStatus::awaited() const {
  std::lock_guard lock(mutex_);
  return awaited_;
}

TaskRunner::TaskRunner(const std::string& stream, const std::string& device,
                       const CpuStreamOptions& options)
    : stream_(stream),
      rank_(options.rank),
      jitter_(options.jitter_seed != 0),
      random_(static_cast<std::uint_fast32_t>(options.jitter_seed % 2147483646 + 1)),
      arena_(options.threads),
      status_(std::make_shared<StreamStatus>(stream, device)) {}

void TaskRunner::run(const std::string& what, std::size_t bytes,
                     const std::function<void()>& task) {
  if (error_ != nullptr) return;
  if (jitter_) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 500));
  status_->begin_task(what);
  const bool traced = Tracer::enabled();
  const std::int64_t begin = traced ? now_ns() : 0;
  try {
    InsideTask inside;
    task();
  } catch (...) {
    error_ = std::current_exception();
  }
  if (traced)
    Tracer::add({what, stream_, rank_, begin, now_ns(), static_cast<std::int64_t>(bytes)});
  status_->end_task();
}

const std::exception_ptr& TaskRunner::hand_on_error() {
  error_seen_ = error_ != nullptr;
  return error_;
}

void TaskRunner::log_unseen_error(const std::string& stream) const {
  if (error_ == nullptr || error_seen_) return;
  log_error(concat("stream '", stream,
                   "' ended with an error that nobody waited for: ", message_of(error_)));
}

void TaskRunner::await(const std::shared_ptr<EventState>& event) {
  // Waited for even after an error: whoever sees an event of this stream may rely on all work
  // before it being over, also when that ended badly.
  if (!event->done()) {
    status_->set_awaited(event);
    try {
      event->await();
    } catch (...) {
      if (error_ == nullptr) error_ = std::current_exception();
    }
    status_->set_awaited(nullptr);
  }
  if (error_ == nullptr && event->done()) {
    error_ = event->error();
    error_seen_ = error_ != nullptr;
  }
}

EventState::HandedOn TaskRunner::await_hand_on(const std::shared_ptr<EventState>& event) {
  status_->set_awaited(event);
  attempt([&] { event->await_hand_on(); });
  status_->set_awaited(nullptr);
  EventState::HandedOn handed_on = event->handed_on();
  if (error_ == nullptr && handed_on.error != nullptr) {
    error_ = handed_on.error;
    error_seen_ = true;
  }
  return handed_on;
}

}  // namespace zero3d
