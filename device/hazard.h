// The hazard checker of a device: at every launch, before anything runs, it compares the declared
// byte ranges with the last uses of the same bytes, and reports the first conflicting pair that no
// stream order, event or host wait orders. The verdict is a function of the order of calls alone.
//
// Freed memory keeps its history: whoever gets the same bytes next must come after their last
// users. Memory that is freed and reused behind the device's back by running tasks (heap memory
// owned by a closure) must therefore not be declared.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "zero3d/device/order.h"
#include "zero3d/device/stream.h"

namespace zero3d {

class HazardChecker {
 public:
  /// A recorder's place in the order; the checker outlives it.
  class Lane {
   public:
    /// For the recorder, in launch order: one more launch has ended (or was skipped).
    void finish() { finished_->fetch_add(1, std::memory_order_release); }

   private:
    friend class HazardChecker;
    std::shared_ptr<const std::string> name_;
    std::size_t index_ = 0;
    std::uint64_t count_ = 0;
    std::uint64_t seen_host_ = 0;
    OrderClock clock_;
    std::shared_ptr<std::atomic<std::uint64_t>> finished_;
  };

  explicit HazardChecker(std::string device);

  Lane add_lane(const std::string& stream);

  /// Throws Error(kHazard), and then nothing has changed.
  void launch(Lane& lane, const std::string& what, std::span<const Access> accesses);
  /// The clock of a point recorded now.
  OrderClock record(Lane& lane);
  void wait(Lane& lane, const OrderClock& clock);
  /// One piece of work outside every stream that starts after `after` (and after what the host has
  /// waited for); returns the clock of its end.
  OrderClock declare(const std::string& what, std::span<const Access> accesses,
                     const OrderClock& after);
  /// The host touches bytes now.
  void host_access(const Access& access);
  /// Whether every launch that used the bytes has ended.
  bool idle(const void* data, std::size_t bytes);
  /// Ranges with a history; they are dropped once the host has waited for their users.
  std::size_t ranges() const;

 private:
  struct Launch {
    std::string what;
    std::shared_ptr<const std::string> stream;
    std::size_t lane = 0;
    std::uint64_t count = 0;
    std::shared_ptr<const std::atomic<std::uint64_t>> finished;
  };
  using LaunchPtr = std::shared_ptr<const Launch>;
  /// Bytes [key, end) with the same last writer and the same readers since.
  struct Range {
    std::uintptr_t end = 0;
    LaunchPtr writer;
    std::vector<LaunchPtr> readers;
  };
  using Ranges = std::map<std::uintptr_t, Range>;

  Lane add_lane_locked(std::shared_ptr<const std::string> name);
  void launch_locked(Lane& lane, const std::string& what, std::span<const Access> accesses);
  void catch_up_with_host(Lane& lane);
  /// Who asks: a launch, or the host.
  struct Asker {
    const std::string& what;
    const std::string& stream;
  };
  void check(const OrderCounts& known, const Access& access, const Asker& asker) const;
  [[noreturn]] void report(const Access& access, const Asker& asker,
                           const Ranges::value_type& range, const Launch& other,
                           bool other_writes) const;
  void apply(const LaunchPtr& launch, const OrderCounts& known, const Access& access);
  void note_read(const LaunchPtr& launch, const OrderCounts& known, std::uintptr_t begin,
                 std::uintptr_t end);
  /// The first range that ends after `address`.
  Ranges::const_iterator first_after(std::uintptr_t address) const;
  /// Makes `address` a border between ranges.
  void split(std::uintptr_t address);
  void drop_observed();

  const std::string device_;
  const std::shared_ptr<OrderDomain> domain_ = std::make_shared<OrderDomain>();
  mutable std::mutex mutex_;
  Ranges ranges_;
  std::size_t sweep_above_ = 256;
  std::size_t lanes_ = 0;
  std::vector<Lane> spare_lanes_;  ///< Of declare(): free for work that comes after their last.
};

/// Device::declare of a device with this checker, null for none.
void declare_work(HazardChecker* checker, const std::string& what, std::span<const Access> accesses,
                  std::span<const Event> after, Event& done);

}  // namespace zero3d
