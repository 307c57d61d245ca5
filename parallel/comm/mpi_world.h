// Messages over MPI that a failure and a timeout can end: what all groups split from one MPI world
// share. Groups are told apart by tags, so that making one needs no blocking call of MPI. Internal
// to the MPI communicator.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "zero3d/parallel/comm/first_failure.h"

namespace zero3d::detail {

/// Throws CommError with MPI's text unless `code` is MPI_SUCCESS.
void check_mpi(int code, int rank, const char* call);

class MpiWorld {
 public:
  /// Collective over all processes. With `compares`, ranks tell each other what they are about to
  /// do before each operation.
  MpiWorld(std::chrono::milliseconds timeout, bool log_failures, bool compares);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_.load(); }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  bool compares() const { return compares_; }

  /// The first call wins on this process; logs the cause if asked to, then sends its words to all
  /// others.
  void fail(const std::exception_ptr& cause) noexcept;
  /// Fails the world by CommError, and throws its first failure.
  [[noreturn]] void fail(const std::string& operation, const std::string& message);
  /// Looks for another process's failure; throws the first there was.
  void check();

  /// Sends a copy of `head` followed by a copy of `body` (when not empty) without waiting for the
  /// receiver.
  void send_buffered(std::vector<std::byte> head, std::vector<std::byte> body, int peer, int tag);

  /// Identifiers of groups: a new one must be above all that any of its members has seen.
  int next_group() const { return next_group_.load(); }
  void saw_group(int id);

 private:
  struct Pending {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  bool poll_failure();
  void settle();
  void post(std::vector<std::byte> bytes, int peer, int tag);
  bool reap_sent();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::atomic<std::chrono::milliseconds> timeout_;
  const bool log_failures_;
  const bool compares_;
  FirstFailure failure_;
  std::atomic<int> next_group_{1};
  std::mutex poll_mutex_;
  std::mutex settle_mutex_;
  std::atomic<bool> settled_{false};  ///< From then on failure_ stays as it is.
  std::mutex sent_mutex_;
  std::list<Pending> sent_;  ///< Messages that MPI may still read from.
};

/// Receives and sends that are waited for together. Unfinished ones are cancelled when it ends, or
/// given a moment to go through.
class MpiBatch {
 public:
  explicit MpiBatch(MpiWorld& world) : world_(world) {}
  ~MpiBatch();
  MpiBatch(const MpiBatch&) = delete;
  MpiBatch& operator=(const MpiBatch&) = delete;

  /// `peer` is a world rank. Large messages are cut the same way on both sides.
  void receive(void* data, std::size_t bytes, int peer, int tag);
  void send(const void* data, std::size_t bytes, int peer, int tag);
  /// Throws the world's failure; past the timeout fails the world, naming the peers of what is
  /// unfinished.
  void wait(const std::string& operation);

 private:
  bool test();
  std::string unfinished_peers();

  MpiWorld& world_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
  std::vector<bool> receives_;
};

}  // namespace zero3d::detail
