// What ended a world: kept once, thrown by every rank. Internal to the communicators.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

namespace zero3d::detail {

/// The first failure of a world: the world rank it happened on, and what was thrown there.
class FirstFailure {
 public:
  /// False, and nothing is kept, when there was one before.
  bool set(int rank, const std::exception_ptr& cause) noexcept;
  /// As set(), but a lower rank's takes the place of a higher one's. Nobody may read meanwhile.
  void settle(int rank, const std::exception_ptr& cause) noexcept;
  /// Once it happened: where; -1 before.
  int rank() const noexcept { return happened() ? rank_ : -1; }
  bool happened() const noexcept { return happened_.load(std::memory_order_acquire); }

  /// Once it happened: the cause as it was thrown.
  const std::exception_ptr& cause() const { return cause_; }
  /// Once it happened: the same as CommAborted, which names the rank and carries the cause's words.
  const std::exception_ptr& echo() const { return echo_; }
  /// Nothing unless it happened; else the cause on its own rank, the echo on any other.
  void check(int rank) const;

 private:
  void keep(int rank, const std::exception_ptr& cause) noexcept;

  std::mutex mutex_;
  std::atomic<bool> happened_{false};  ///< What follows stays as it is from then on, but settle().
  int rank_ = -1;
  std::exception_ptr cause_;
  std::exception_ptr echo_;
};

}  // namespace zero3d::detail
