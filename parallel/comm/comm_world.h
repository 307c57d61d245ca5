// What all groups split from one world share inside a process: the abort state and the wait limit.
// Also the two ways threads wait for each other that an abort must be able to end. Internal to the
// communicators.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace zero3d::detail {

class WaitPoint;

class CommWorld {
 public:
  explicit CommWorld(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  std::chrono::milliseconds timeout() const { return timeout_; }
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  /// The first call wins and wakes every waiter. `rank` is the world rank that failed. Returns
  /// whether this call was the first.
  bool abort(int rank, const std::string& reason) noexcept;
  /// Throws CommAborted with the abort's rank and reason.
  [[noreturn]] void throw_aborted(const std::string& operation) const;
  void check(const std::string& operation) const {
    if (aborted()) throw_aborted(operation);
  }

 private:
  friend class WaitPoint;
  const std::chrono::milliseconds timeout_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;  ///< Guards what follows; taken before any WaitPoint's mutex.
  int rank_ = -1;
  std::string reason_;
  std::set<WaitPoint*> points_;
};

/// A mutex and condition that the world's abort wakes.
class WaitPoint {
 public:
  explicit WaitPoint(CommWorld& world);
  ~WaitPoint();
  WaitPoint(const WaitPoint&) = delete;
  WaitPoint& operator=(const WaitPoint&) = delete;

 protected:
  CommWorld& world() const { return world_; }
  std::mutex mutex_;
  std::condition_variable condition_;

 private:
  friend class CommWorld;
  CommWorld& world_;
};

/// A barrier of the members of a group, in two strengths. enter() may be ended by an abort or a
/// timeout; either all members get through it or none does. meet() may not: it follows an enter()
/// that all got through, while ranks still touch each other's memory, and its wait is bounded by
/// their copying.
class Rendezvous final : public WaitPoint {
 public:
  /// `members` are the world ranks, for messages.
  Rendezvous(CommWorld& world, std::vector<int> members);

  /// `rank` is the caller's index in members. Throws CommAborted when the world is aborted or a
  /// missing member has left; past the timeout aborts the world and throws CommError naming who is
  /// missing.
  void enter(int rank, const std::string& operation);
  void meet(int rank) noexcept;
  /// The member will not come again: ends the waits of those who miss it, now and later.
  void leave(int rank) noexcept;

 private:
  bool arrive(int rank, std::uint64_t& generation);
  bool passed(std::uint64_t generation) const;
  bool spin(std::uint64_t generation) const;
  bool withdraw(std::uint64_t generation);
  std::string missing(std::uint64_t generation) const;
  /// The index of a member that left without arriving; -1 for none.
  int gone(std::uint64_t generation) const;

  const std::vector<int> members_;
  /// Generation in the upper bits, then the withdrawn flag, then how many have arrived.
  std::atomic<std::uint64_t> word_{0};
  std::atomic<int> sleepers_{0};
  std::vector<std::atomic<std::uint64_t>> arrivals_;
  std::vector<std::atomic<bool>> left_;
};

}  // namespace zero3d::detail
