// Streams of the CPU device. QueuedStream is a worker thread with a FIFO; InlineStream runs each
// task at its launch, for debugging. Both keep their first error, run nothing after it and hand it
// on through the events they record. A QueuedStream may have a queue of another device behind it:
// its worker hands on what is for that one, and runs the host's tasks once that is over.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "zero3d/device/cpu/arena.h"
#include "zero3d/device/cpu/arena_resource.h"
#include "zero3d/device/event_state.h"
#include "zero3d/device/hazard.h"
#include "zero3d/device/native_queue.h"
#include "zero3d/device/stream.h"

namespace zero3d {

/// What host code of a device may touch.
class HostBounds {
 public:
  explicit HostBounds(const ArenaResource& device_memory) : device_memory_(device_memory) {}
  /// Throws Error(kHazard) when an access is to device memory; `what` and `where` name who asks.
  void check(const std::string& what, const std::string& where,
             std::span<const Access> accesses) const;

 private:
  const ArenaResource& device_memory_;
};

struct CpuStreamOptions {
  int rank = 0;
  int threads = 1;
  std::uint64_t jitter_seed = 0;
  HazardChecker* checker = nullptr;  ///< Null: launches are not checked.
  const HostBounds* bounds = nullptr;
  DeviceKind kind = DeviceKind::cpu;
  /// Of the device behind the stream, if it is not the CPU.
  std::shared_ptr<NativeQueue> native;
};

/// A stream's place in the order of its device's checker. Without one it checks nothing, and still
/// passes on what events of checked devices say.
class StreamOrder {
 public:
  StreamOrder(const std::string& stream, HazardChecker* checker);

  void launch(const std::string& what, std::span<const Access> accesses);
  void record(EventState& event);
  /// Throws Error(kHazard) for an event never recorded.
  void wait(const std::string& stream, const Event& event);
  /// The host has waited for all of the stream.
  void observe();
  /// For the worker: the oldest launch not yet finished has ended.
  void finish();

 private:
  HazardChecker* checker_;
  HazardChecker::Lane lane_;
  OrderClock carried_;  ///< Without a checker.
};

/// What a stream is doing, for messages of those who wait for it; outlives the stream.
class StreamStatus final : public Recorder {
 public:
  StreamStatus(std::string stream, std::string device)
      : stream_(std::move(stream)), device_(std::move(device)) {}

  void begin_task(const std::string& what);
  void end_task();
  std::string status() const override;
  std::uint64_t progress() const override;
  std::shared_ptr<const EventState> awaited() const override;
  void set_awaited(std::shared_ptr<const EventState> awaited);

 private:
  const std::string stream_;
  const std::string device_;
  mutable std::mutex mutex_;
  std::string task_;
  std::atomic<bool> running_{false};
  std::atomic<std::uint64_t> finished_{0};
  std::shared_ptr<const EventState> awaited_;
};

/// Runs tasks one at a time, on whichever thread the stream says.
class TaskRunner {
 public:
  TaskRunner(const std::string& stream, const std::string& device, const CpuStreamOptions& options);

  /// Runs task unless an earlier one failed; keeps what it throws.
  void run(const std::string& what, std::size_t bytes, const std::function<void()>& task);
  /// Blocks until the point is passed and takes over its error.
  void await(const std::shared_ptr<EventState>& event);
  /// As run(), of what is handed on: what comes of it is not known yet.
  template <typename Step>
  void attempt(Step&& step) noexcept {
    try {
      step();
    } catch (...) {
      if (error_ == nullptr) error_ = std::current_exception();
    }
  }
  /// Blocks until the point is handed on or passed, and takes over its error of then.
  EventState::HandedOn await_hand_on(const std::shared_ptr<EventState>& event);

  CpuArena& arena() { return arena_; }
  const std::shared_ptr<StreamStatus>& status() const { return status_; }
  const std::exception_ptr& error() const { return error_; }
  /// The error for an event or a synchronise: from here on somebody else knows of it.
  const std::exception_ptr& hand_on_error();
  /// Logs an error that nobody was told of; when the stream ends.
  void log_unseen_error(const std::string& stream) const;

 private:
  const std::string stream_;
  const int rank_;
  const bool jitter_;
  std::minstd_rand random_;
  CpuArena arena_;
  std::shared_ptr<StreamStatus> status_;
  std::exception_ptr error_;
  bool error_seen_ = false;
};

class QueuedStream final : public Stream {
 public:
  QueuedStream(Device& device, const std::string& name, const CpuStreamOptions& options);
  ~QueuedStream() override;

  using Stream::host_task;
  using Stream::launch;
  void launch(std::string what, std::span<const Access> accesses,
              std::function<void()> task) override;
  void host_task(std::string what, std::span<const Access> accesses,
                 std::function<void()> task) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void then(std::function<void(const std::exception_ptr&)> next) override;
  void synchronize() override;

  /// As launch(), of work for the device behind the stream: `issue` hands it on.
  void launch_native(std::string what, std::span<const Access> accesses,
                     std::function<void()> issue);
  /// As then(), but once all before has been handed on.
  void then_handed_on(std::function<void(const std::exception_ptr&)> next);
  /// Null for a stream of the CPU.
  NativeQueue* native() const { return native_.get(); }

 private:
  enum class Step { run, hand_on, record, wait, then, then_handed_on };
  struct Task {
    Step step;
    std::size_t bytes = 0;
    std::string what;
    std::function<void()> body;
    std::shared_ptr<EventState> event;
    std::function<void(const std::exception_ptr&)> next;
  };

  void push(Task task);
  void work();
  /// Waits for tasks and takes all there are; false when the stream ends.
  bool take(std::vector<Task>& batch);
  /// Lets go of what the task holds as soon as it is over.
  void execute(Task& task);
  void settle();
  void await(const std::shared_ptr<EventState>& event);
  void pass(EventState& event);

  const HostBounds* bounds_;
  const std::shared_ptr<NativeQueue> native_;
  StreamOrder order_;
  TaskRunner runner_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<Task> queue_;
  std::atomic<bool> pending_{false};  ///< queue_ has tasks, or the end was asked for.
  bool sleeping_ = false;
  bool ending_ = false;
  std::thread worker_;
};

class InlineStream final : public Stream {
 public:
  InlineStream(Device& device, const std::string& name, const CpuStreamOptions& options);
  ~InlineStream() override;

  using Stream::host_task;
  using Stream::launch;
  void launch(std::string what, std::span<const Access> accesses,
              std::function<void()> task) override;
  void host_task(std::string what, std::span<const Access> accesses,
                 std::function<void()> task) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void then(std::function<void(const std::exception_ptr&)> next) override;
  void synchronize() override;

 private:
  const HostBounds* bounds_;
  StreamOrder order_;
  TaskRunner runner_;
};

}  // namespace zero3d
