// The FIFO and the worker thread of a stream, and the inline stream.
#include "zero3d/device/cpu/cpu_stream.h"

#include <pthread.h>

#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cpu/spin.h"
#include "zero3d/device/device.h"

namespace zero3d {
namespace {

/// The bytes a span is labelled with.
std::size_t written_bytes(std::span<const Access> accesses) {
  std::size_t bytes = 0;
  for (const Access& access : accesses) bytes += access.write ? access.bytes : 0;
  return bytes;
}

void name_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());  // the kernel keeps 15 bytes
}

}  // namespace

void HostBounds::check(const std::string& what, const std::string& where,
                       std::span<const Access> accesses) const {
  for (const Access& access : accesses) {
    if (access.bytes == 0 || !device_memory_.contains(access.data)) continue;
    throw Error(ErrorKind::kHazard,
                concat("'", what, "' on ", where, " is host code and ",
                       access.write ? "writes " : "reads ", access.bytes,
                       " bytes of device memory, which may be out of its reach: copy them to or "
                       "from host memory (Readback), or launch a kernel on them"));
  }
}

StreamOrder::StreamOrder(const std::string& stream, HazardChecker* checker) : checker_(checker) {
  if (checker_ != nullptr) lane_ = checker_->add_lane(stream);
}

void StreamOrder::launch(const std::string& what, std::span<const Access> accesses) {
  if (checker_ != nullptr) checker_->launch(lane_, what, accesses);
}

void StreamOrder::record(EventState& event) {
  if (checker_ != nullptr) {
    event.set_order(checker_->record(lane_));
  } else if (!carried_.empty()) {
    event.set_order(carried_);
  }
}

void StreamOrder::wait(const std::string& stream, const Event& event) {
  if (!event.recorded()) {
    throw Error(ErrorKind::kHazard,
                concat("stream '", stream,
                       "' waits on an event that was never recorded; record it first, on the "
                       "stream whose work is to be waited for"));
  }
  const OrderClock& order = event.state()->order();
  if (checker_ != nullptr) {
    checker_->wait(lane_, order);
  } else if (!order.empty()) {
    carried_.join(order);
  }
}

void StreamOrder::observe() {
  if (checker_ != nullptr) checker_->record(lane_).observe();
}

void StreamOrder::finish() {
  if (checker_ != nullptr) lane_.finish();
}

QueuedStream::QueuedStream(Device& device, const std::string& name, const CpuStreamOptions& options)
    : Stream(device, name, options.kind),
      bounds_(options.bounds),
      native_(options.native),
      order_(name, options.checker),
      runner_(name, device.description(), options) {
  worker_ = std::thread([this, rank = options.rank] {
    name_thread(this->name());
    set_log_rank(rank);
    if (native_ != nullptr) runner_.attempt([this] { native_->enter(); });
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
  order_.observe();
  runner_.log_unseen_error(name());
}

void QueuedStream::launch(std::string what, std::span<const Access> accesses,
                          std::function<void()> task) {
  if (kind() != device().kind() || native_ != nullptr)
    bounds_->check(what, concat("stream '", name(), "'"), accesses);
  order_.launch(what, accesses);
  push({Step::run, written_bytes(accesses), std::move(what), std::move(task), nullptr, {}});
}

void QueuedStream::launch_native(std::string what, std::span<const Access> accesses,
                                 std::function<void()> issue) {
  ZERO3D_CHECK(native_ != nullptr, "work for a device on a stream that has none behind it");
  order_.launch(what, accesses);
  push({Step::hand_on, written_bytes(accesses), std::move(what), std::move(issue), nullptr, {}});
}

void QueuedStream::host_task(std::string what, std::span<const Access> accesses,
                             std::function<void()> task) {
  bounds_->check(what, concat("stream '", name(), "'"), accesses);
  launch(std::move(what), accesses, std::move(task));
}

void QueuedStream::record(Event& event) {
  EventState& state = event.begin_record();
  state.set_recorder(runner_.status());
  order_.record(state);
  push({Step::record, 0, {}, {}, event.state(), {}});
}

void QueuedStream::wait(const Event& event) {
  order_.wait(name(), event);
  push({Step::wait, 0, {}, {}, event.state(), {}});
}

void QueuedStream::then(std::function<void(const std::exception_ptr&)> next) {
  push({Step::then, 0, {}, {}, nullptr, std::move(next)});
}

void QueuedStream::then_handed_on(std::function<void(const std::exception_ptr&)> next) {
  push({Step::then_handed_on, 0, {}, {}, nullptr, std::move(next)});
}

void QueuedStream::synchronize() {
  ZERO3D_CHECK(std::this_thread::get_id() != worker_.get_id(),
               "a task synchronises the stream it runs on");
  Event end;
  record(end);
  end.wait();  // joins this stream's order into the host's
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
    for (Task& task : batch) execute(task);
    batch.clear();
  }
  if (native_ != nullptr) runner_.attempt([this] { native_->finish(); });
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

void QueuedStream::execute(Task& task) {
  switch (task.step) {
    case Step::run:
      settle();
      [[fallthrough]];
    case Step::hand_on:
      runner_.run(task.what, task.bytes, task.body);
      task.body = nullptr;
      order_.finish();
      break;
    case Step::wait:
      await(task.event);
      task.event.reset();
      break;
    case Step::record:
      pass(*task.event);
      task.event.reset();
      break;
    case Step::then:
      if (native_ != nullptr) {
        const auto end = std::make_shared<EventState>();
        end->set_recorder(runner_.status());
        pass(*end);
        end->then([end, next = std::move(task.next)] { next(end->error()); });
        break;
      }
      [[fallthrough]];
    case Step::then_handed_on:
      task.next(runner_.hand_on_error());
      task.next = nullptr;
      break;
  }
}

void QueuedStream::settle() {
  if (native_ != nullptr) runner_.attempt([this] { native_->settle(); });
}

void QueuedStream::await(const std::shared_ptr<EventState>& event) {
  if (native_ != nullptr) {
    const EventState::HandedOn handed_on = runner_.await_hand_on(event);
    bool waits = false;
    if (handed_on.point != nullptr)
      runner_.attempt([&] { waits = native_->wait(*handed_on.point); });
    if (waits) return;
  }
  runner_.await(event);
}

void QueuedStream::pass(EventState& event) {
  std::shared_ptr<NativePoint> point;
  if (native_ != nullptr) runner_.attempt([&] { point = native_->record(); });
  if (point == nullptr) return event.complete(runner_.hand_on_error());
  event.hand_on(std::move(point), runner_.hand_on_error());
}

InlineStream::InlineStream(Device& device, const std::string& name, const CpuStreamOptions& options)
    : Stream(device, name, options.kind),
      bounds_(options.bounds),
      order_(name, options.checker),
      runner_(name, device.description(), options) {}

InlineStream::~InlineStream() { runner_.log_unseen_error(name()); }

void InlineStream::launch(std::string what, std::span<const Access> accesses,
                          std::function<void()> task) {
  order_.launch(what, accesses);
  runner_.arena().enter([&] { runner_.run(what, written_bytes(accesses), task); });
  task = nullptr;
  order_.finish();
}

void InlineStream::host_task(std::string what, std::span<const Access> accesses,
                             std::function<void()> task) {
  bounds_->check(what, concat("stream '", name(), "'"), accesses);
  launch(std::move(what), accesses, std::move(task));
}

void InlineStream::record(Event& event) {
  EventState& state = event.begin_record();
  state.set_recorder(runner_.status());
  order_.record(state);
  state.complete(runner_.hand_on_error());
}

void InlineStream::wait(const Event& event) {
  order_.wait(name(), event);
  runner_.await(event.state());
}

void InlineStream::then(std::function<void(const std::exception_ptr&)> next) {
  next(runner_.hand_on_error());
}

void InlineStream::synchronize() {
  order_.observe();
  if (runner_.error() != nullptr) std::rethrow_exception(runner_.hand_on_error());
}

}  // namespace zero3d
