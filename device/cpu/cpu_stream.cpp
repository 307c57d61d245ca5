// The FIFO and the worker thread of a stream, and the inline stream.
#include "zero3d/device/cpu/cpu_stream.h"

#include <pthread.h>

#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/device/spin.h"

namespace zero3d {
namespace {

[[noreturn]] void throw_never_recorded(const std::string& stream) {
  throw Error(ErrorKind::kHazard,
              concat("stream '", stream,
                     "' waits on an event that was never recorded; record it first, on the stream "
                     "whose work is to be waited for"));
}

void name_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());  // the kernel keeps 15 bytes
}

}  // namespace

QueuedStream::QueuedStream(Device& device, const std::string& name, const CpuStreamOptions& options)
    : Stream(device, name), runner_(name, device.description(), options) {
  worker_ = std::thread([this, rank = options.rank] {
    name_thread(this->name());
    set_log_rank(rank);
    runner_.arena().enter([this] { work(); });
  });
}

QueuedStream::~QueuedStream() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    pending_.store(true, std::memory_order_release);
  }
  filled_.notify_one();
  worker_.join();
}

void QueuedStream::launch(std::string what, std::span<const Access> accesses,
                          std::function<void()> task) {
  std::size_t bytes = 0;
  for (const Access& access : accesses) bytes += access.write ? access.bytes : 0;
  push({Step::run, bytes, std::move(what), std::move(task), nullptr});
}

void QueuedStream::record(Event& event) {
  event.begin_record().set_recorder(runner_.status());
  push({Step::record, 0, {}, {}, event.state()});
}

void QueuedStream::wait(const Event& event) {
  if (!event.recorded()) throw_never_recorded(name());
  push({Step::wait, 0, {}, {}, event.state()});
}

void QueuedStream::synchronize() {
  ZERO3D_CHECK(std::this_thread::get_id() != worker_.get_id(),
               "a task synchronises the stream it runs on");
  Event end;
  record(end);
  end.wait();
}

void QueuedStream::push(Task task) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
    pending_.store(true, std::memory_order_release);
    wake = std::exchange(sleeping_, false);
  }
  if (wake) filled_.notify_one();
}

void QueuedStream::work() {
  std::vector<Task> batch;
  while (take(batch)) {
    for (Task& task : batch) execute(std::move(task));
    batch.clear();
  }
}

bool QueuedStream::take(std::vector<Task>& batch) {
  spin_until([this] { return pending_.load(std::memory_order_acquire); });
  std::unique_lock lock(mutex_);
  while (queue_.empty()) {
    if (ending_) return false;
    sleeping_ = true;
    filled_.wait(lock);
  }
  batch.swap(queue_);
  pending_.store(ending_, std::memory_order_release);
  return true;
}

void QueuedStream::execute(Task task) {
  switch (task.step) {
    case Step::run:
      runner_.run(task.what, task.bytes, task.body);
      break;
    case Step::wait:
      runner_.await(task.event);
      break;
    case Step::record:
      task.event->complete(runner_.error());
      break;
  }
}

InlineStream::InlineStream(Device& device, const std::string& name, const CpuStreamOptions& options)
    : Stream(device, name), runner_(name, device.description(), options) {}

void InlineStream::launch(std::string what, std::span<const Access> accesses,
                          std::function<void()> task) {
  std::size_t bytes = 0;
  for (const Access& access : accesses) bytes += access.write ? access.bytes : 0;
  runner_.arena().enter([&] { runner_.run(what, bytes, task); });
}

void InlineStream::record(Event& event) {
  EventState& state = event.begin_record();
  state.set_recorder(runner_.status());
  state.complete(runner_.error());
}

void InlineStream::wait(const Event& event) {
  if (!event.recorded()) throw_never_recorded(name());
  runner_.await(event.state());
}

void InlineStream::synchronize() {
  if (runner_.error() != nullptr) std::rethrow_exception(runner_.error());
}

}  // namespace zero3d
