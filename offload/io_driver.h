// The inside of an I/O queue's thread: cuts requests into pieces, keeps the port busy, and follows
// each piece to its end. Used by that thread alone. Internal to the I/O queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/device/event_state.h"
#include "zero3d/offload/io_port.h"
#include "zero3d/offload/io_queue.h"

namespace zero3d {

/// One submission.
struct IoRequest {
  std::string what;
  std::vector<IoTransfer> transfers;
  std::vector<std::shared_ptr<EventState>> after;
  std::atomic<std::size_t> waits{0};  ///< Of `after`, those not passed yet; and submit() itself.
  std::shared_ptr<EventState> state;  ///< Null once completed.

  // What follows is the driver's.
  std::exception_ptr error;
  std::size_t next = 0;  ///< Of the transfers: the first that is not all started.
  std::int64_t at = 0;   ///< Bytes of it that are.
  int under_way = 0;
  std::int64_t begin_ns = 0;

  std::int64_t bytes() const;
  void complete();
};

class IoDriver {
 public:
  using Requests = std::vector<std::shared_ptr<IoRequest>>;
  /// `over` is called with each request whose event is complete and whose memory nobody uses.
  IoDriver(IoPort& port, const IoOptions& options,
           const std::vector<std::shared_ptr<const IoFile>>& files,
           std::function<void(const IoRequest&)> over);

  /// Takes a request whose `after` are all passed.
  void add(std::shared_ptr<IoRequest> request);
  /// Starts what may be started, then waits for an end, a wake of the port, or a stall. Throws
  /// nothing: when the port fails or the drive stalls, all requests end with the error, those to
  /// come too.
  void turn();

  bool broken() const { return broken_ != nullptr; }
  const std::exception_ptr& error() const { return broken_; }
  std::uint64_t pieces_over() const { return pieces_over_.load(std::memory_order_relaxed); }
  IoCounters counters() const { return {read_bytes_, written_bytes_}; }

 private:
  struct Piece {
    std::shared_ptr<IoRequest> request;  ///< Null: the place is free.
    std::size_t transfer = 0;
    std::int64_t begin = 0;  ///< Of its bytes in the transfer.
    std::int64_t bytes = 0;
    std::int64_t moved = 0;
    int repeats = 0;  ///< Since bytes moved last.
  };

  void fill();
  bool start_next(std::size_t place);
  IoPiece describe(std::size_t place) const;
  void finish(const IoDone& done);
  void move_on(std::size_t place, std::int64_t moved);
  void repeat(std::size_t place, int code);
  void end_piece(std::size_t place);
  void fail(std::size_t place, int code, const std::string& why);
  /// Completes the request if nothing of it is left to do.
  void settle(const std::shared_ptr<IoRequest>& request);
  void verify(const Piece& piece);
  void watch(bool ended);
  void break_down(const std::exception_ptr& error);
  IoError error_at(const Piece& piece, int code, const std::string& why) const;

  IoPort& port_;
  const IoOptions& options_;
  const std::vector<std::shared_ptr<const IoFile>>& files_;
  const std::function<void(const IoRequest&)> over_;
  std::deque<std::shared_ptr<IoRequest>> pending_;  ///< Not all started.
  std::vector<Piece> pieces_;                       ///< By tag.
  std::vector<std::size_t> free_;
  std::vector<std::size_t> again_;  ///< To be started again.
  std::vector<IoPiece> starting_;
  std::vector<IoDone> done_;
  std::int64_t last_end_ns_ = 0;
  std::exception_ptr broken_;
  std::atomic<std::uint64_t> pieces_over_{0};
  std::atomic<std::int64_t> read_bytes_{0}, written_bytes_{0};
};

}  // namespace zero3d
