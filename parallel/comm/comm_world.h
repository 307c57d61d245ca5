// What all groups split from one world of threads share: the first failure, the wait limit, and a
// helper thread that watches it, so that neither hosts nor streams have to. Internal to the thread
// communicator.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "zero3d/parallel/comm/first_failure.h"

namespace zero3d::detail {

using Clock = std::chrono::steady_clock;

/// A place where ranks wait for each other.
class WaitingRoom {
 public:
  virtual ~WaitingRoom() = default;
  /// The world failed: ends every wait that has not begun to end by itself. Called once.
  virtual void end_waits() noexcept = 0;
  /// Somebody who began to wait before `limit` and still does.
  struct Late {
    int rank = 0;  ///< In the world.
    std::string operation;
    std::string missing;
    Clock::time_point since;
  };
  virtual std::optional<Late> late(Clock::time_point limit) = 0;
};

class CommWorld {
 public:
  CommWorld(int size, std::chrono::milliseconds timeout);
  ~CommWorld();
  CommWorld(const CommWorld&) = delete;
  CommWorld& operator=(const CommWorld&) = delete;

  const FirstFailure& failure() const { return failure_; }
  /// The first call wins and ends every wait. `rank` is the world rank it happened on.
  void fail(int rank, const std::exception_ptr& cause) noexcept;

  void set_timeout(std::chrono::milliseconds timeout);
  void add(WaitingRoom* room);
  void remove(WaitingRoom* room);

 private:
  void watch();
  std::optional<WaitingRoom::Late> find_late(std::chrono::milliseconds limit);

  FirstFailure failure_;
  std::mutex mutex_;  ///< Taken before any room's.
  std::chrono::milliseconds timeout_;
  std::set<WaitingRoom*> rooms_;
  std::condition_variable ending_;
  bool ended_ = false;
  std::thread watcher_;
};

}  // namespace zero3d::detail
