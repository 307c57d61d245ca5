// Who comes after whom, as far as streams, events and host waits say so: the vector clocks behind
// the hazard checker. A recorder (a stream, an I/O request) counts its own launches; an event
// carries its recorder's clock; a waiter joins it. Nothing here depends on when work runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace zero3d {

/// One count per recorder of a device: the launches up to it are known to come before.
using OrderCounts = std::vector<std::uint64_t>;

/// into = elementwise maximum; missing counts are zero.
void join_counts(OrderCounts& into, const OrderCounts& from);

/// What the host that drives a device has waited for. Thread-safe.
class OrderDomain {
 public:
  void observe(const OrderCounts& counts);
  /// Changes with every observe(); a cheap test for news.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
  OrderCounts observed() const;

 private:
  mutable std::mutex mutex_;
  OrderCounts counts_;
  std::atomic<std::uint64_t> version_{0};
};

/// The counts of every device whose work a point comes after. Empty where nobody checks.
class OrderClock {
 public:
  void join(const OrderClock& other);
  void join(const std::shared_ptr<OrderDomain>& domain, const OrderCounts& counts);
  /// Null when the clock knows nothing of the domain.
  const OrderCounts* find(const OrderDomain& domain) const;
  OrderCounts& counts(const std::shared_ptr<OrderDomain>& domain);
  bool empty() const { return parts_.empty(); }
  /// The host has waited for this point: each device's host learns its device's part.
  void observe() const;

 private:
  struct Part {
    std::shared_ptr<OrderDomain> domain;
    OrderCounts counts;
  };
  std::vector<Part> parts_;
};

/// While one exists on a thread, the thread runs a task of a stream. Its waits order nothing in the
/// checker: what a task waits for when it runs is unknown when the next launch is checked.
class InsideTask {
 public:
  InsideTask() : before_(inside_) { inside_ = true; }
  ~InsideTask() { inside_ = before_; }
  InsideTask(const InsideTask&) = delete;
  InsideTask& operator=(const InsideTask&) = delete;
  static bool active() { return inside_; }

 private:
  static thread_local bool inside_;
  bool before_;
};

}  // namespace zero3d
