// A device: streams, memory and the copies between memory and memory. About ten virtual calls;
// every back end passes the contract suite tests/contract/device_contract.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "zero3d/core/view.h"
#include "zero3d/device/memory.h"
#include "zero3d/device/stream.h"

namespace zero3d {

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  /// "cpu of rank 1".
  virtual std::string description() const = 0;
  virtual std::unique_ptr<Stream> create_stream(const std::string& name) = 0;
  /// A stream whose kernels run on the host's processors and on host memory, beside what the device
  /// computes. On a CPU device the two are one kind.
  virtual std::unique_ptr<Stream> create_host_stream(const std::string& name) {
    return create_stream(name);
  }

  /// Memory of one tier. The two host tiers share one budget.
  virtual TrackingResource& memory(Tier tier) = 0;
  TrackingResource& memory() { return memory(Tier::device); }

  /// Enqueues dst = src; equal bytes, either side in device or host memory of this device;
  /// ranges do not overlap.
  virtual void copy(Stream& stream, const View& dst, const ConstView& src) = 0;
  /// What such copies were asked to move between the two so far.
  struct CopiedBytes {
    std::int64_t to_device = 0;
    std::int64_t to_host = 0;
  };
  virtual CopiedBytes copied() const { return {}; }
  /// Enqueues dst = 0.
  virtual void fill_zero(Stream& stream, const View& dst) = 0;

  /// Bytes of host memory for the host to read now. Throws Error(kHazard) for device memory, which
  /// the host cannot reach (see Readback), and reports so if a stream may still write the bytes:
  /// the host has not waited for an event or a synchronise after the last write.
  virtual ConstView host_read(const ConstView& view) = 0;
  /// The same for writing by the host, against readers too.
  virtual View host_write(const View& view) = 0;

  /// For recorders that are no streams (I/O queues): tells the hazard checker of work `what` that
  /// starts after `after` and all the host has waited for, touches `accesses`, and ends at `done`,
  /// whose record has begun and is not yet handed on. Throws Error(kHazard) as a launch does.
  /// Without a checker it does nothing.
  virtual void declare(const std::string& what, std::span<const Access> accesses,
                       std::span<const Event> after, Event& done) = 0;
};

struct CpuDeviceOptions {
  int rank = 0;     ///< Shown in traces and errors.
  int threads = 1;  ///< Threads that run one kernel (a TBB arena of its own).
  std::int64_t budget_bytes = TrackingResource::kUnlimited;
  std::int64_t host_budget_bytes = TrackingResource::kUnlimited;  ///< Pinned and pageable together.
  bool check_hazards = default_checks();  ///< The vector-clock checker of launches.
  /// Fill device memory with NaN bytes (0xFF) when released and when handed out, unless launches
  /// that use it are still under way. Needs check_hazards, which knows them.
  bool poison_on_free = default_checks();
  bool inline_streams = false;    ///< Run every task at launch, on the host thread (debugging).
  std::uint64_t jitter_seed = 0;  ///< Nonzero: random sub-millisecond delays before tasks.

  /// True when the environment has ZERO3D_CHECK=1 or the build turned ZERO3D_HAZARD_CHECKS on.
  static bool default_checks();
};

/// The CPU as an asynchronous device: a stream is a worker thread with a FIFO, an event a point in
/// it. Its threads run on the CPUs that the creating thread may use: bind that one first to bind
/// all.
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

/// A device that only counts: its memory has addresses and no bytes, its streams drop their work,
/// its events are done at once. Host memory is real. For dry runs that measure what would be
/// allocated; host_read and host_write of device memory throw Error(kInvalid). `on_read` is told
/// where what launches and copies read begins.
using ReadObserver = std::function<void(const void* data)>;
std::unique_ptr<Device> make_meta_device(ReadObserver on_read = {});

}  // namespace zero3d
