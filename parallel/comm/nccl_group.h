// One rank's NCCL communicator: made over a group that can exchange strings, aborted when that
// group's world fails, and watched for errors of its own. Internal to the NCCL communicator.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "zero3d/device/cuda/cuda_stream.h"
#include "zero3d/device/event_state.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {

class NcclGroup {
 public:
  /// Collective over `inner`.
  NcclGroup(std::shared_ptr<Communicator> inner, int device);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Calls body(communicator) as one group of NCCL calls, and waits until NCCL has taken them.
  /// Throws the world's failure, also when that comes first.
  void issue(const std::function<void(ncclComm_t)>& body);
  /// Throws the world's failure, for what came of operations that were aborted.
  const CudaCheck& check() const { return check_; }
  /// `end` is behind an operation: past the time limit, peers are missing there.
  void expect(const char* operation, const Event& end);
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout.count(); }

 private:
  struct Expected {
    const char* operation;
    Event end;
  };

  void open();
  /// Until NCCL no longer says that it is in progress, with the mutex released in between.
  void settle(ncclResult_t result, const char* call, std::unique_lock<std::mutex>& lock);
  void require_open();
  void watch();
  void look_for_errors();
  void look_for_late_peers(std::chrono::steady_clock::time_point now);
  void abort();
  std::chrono::milliseconds limit() const { return std::chrono::milliseconds(timeout_.load()); }

  const std::shared_ptr<Communicator> inner_;
  const int rank_;
  const int size_;
  const int device_;
  CudaCheck check_;

  std::mutex mutex_;  ///< Guards what follows.
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  std::deque<Expected> expected_;
  std::chrono::steady_clock::time_point expected_since_;
  std::atomic<std::int64_t> timeout_{300000};  ///< Milliseconds.
  bool ending_ = false;
  std::condition_variable ended_;
  std::thread watcher_;
};

}  // namespace zero3d::detail
