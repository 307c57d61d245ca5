// An in-order queue of work on a device. Everything asynchronous names its stream; there is no
// default stream. Enqueueing never blocks on the work. Streams of one device may be fed from one
// host thread at a time each.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "zero3d/core/view.h"
#include "zero3d/device/event.h"

namespace zero3d {

class Device;

enum class DeviceKind { cpu, cuda, meta };

/// A byte range that a launch reads or writes. Undefined and empty views are ignored.
struct Access {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};
inline Access reads(const ConstView& view) { return {view.data(), view.bytes(), false}; }
inline Access writes(const View& view) { return {view.data(), view.bytes(), true}; }

class Stream;

/// Names a stream to those who outlive it: null once it has ended, and so all of its work.
struct StreamHandle {
  Stream* stream = nullptr;
};

class Stream {
 public:
  virtual ~Stream() { handle_->stream = nullptr; }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  const std::string& name() const { return name_; }
  /// Whose bodies its kernels have: its device's, but for streams of host kernels.
  DeviceKind kind() const { return kind_; }
  std::shared_ptr<const StreamHandle> handle() const { return handle_; }

  /// Enqueues a computation on memory as one task of the host's processors: on a CPU device what a
  /// kernel's body or a user's own loop does, on device memory or host memory; on other devices a
  /// loop on host memory, once all before it is over (Error kHazard at the call when an access is
  /// to device memory). `what` names it in traces and errors (a string that outlives the stream, or
  /// a std::string). Its accesses must be declared: the hazard checker orders them, and reports at
  /// the call the first pair of conflicting accesses that no stream order, event or host wait
  /// orders.
  virtual void launch(std::string what, std::span<const Access> accesses,
                      std::function<void()> task) = 0;
  void launch(std::string what, std::initializer_list<Access> accesses,
              std::function<void()> task) {
    launch(std::move(what), std::span<const Access>(accesses.begin(), accesses.size()),
           std::move(task));
  }
  /// Enqueues host code as one task. It may touch host memory only; what it touches of a device's
  /// host memory is declared. Throws Error(kHazard) when an access is to device memory, and as
  /// launch() does.
  virtual void host_task(std::string what, std::span<const Access> accesses,
                         std::function<void()> task) = 0;
  void host_task(std::string what, std::initializer_list<Access> accesses,
                 std::function<void()> task) {
    host_task(std::move(what), std::span<const Access>(accesses.begin(), accesses.size()),
              std::move(task));
  }
  /// Makes `event` name the point after all work enqueued so far. The event carries the stream's
  /// first error on.
  virtual void record(Event& event) = 0;
  /// Work enqueued from here on runs after the point. Throws Error(kHazard) if the event was never
  /// recorded.
  virtual void wait(const Event& event) = 0;
  /// Calls `next` with the stream's first error (null if none) once all work enqueued so far is
  /// over, on whichever thread ends it. It neither throws nor blocks.
  virtual void then(std::function<void(const std::exception_ptr&)> next) = 0;
  /// Blocks the host until the stream is empty; rethrows the stream's first error (which stays: a
  /// stream that failed runs nothing more).
  virtual void synchronize() = 0;

 protected:
  Stream(Device& device, std::string name, DeviceKind kind)
      : device_(device), name_(std::move(name)), kind_(kind) {
    handle_->stream = this;
  }

 private:
  Device& device_;
  std::string name_;
  const DeviceKind kind_;
  const std::shared_ptr<StreamHandle> handle_ = std::make_shared<StreamHandle>();
};

}  // namespace zero3d
