// How a drive is read and written: plain data, and the seam below it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace zero3d {

class IoPort;
struct IoPortOptions;
using IoPortFactory = std::function<std::unique_ptr<IoPort>(const IoPortOptions&)>;

/// The keys of a ds_config's `aio`, and what has no key.
struct IoOptions {
  static constexpr std::int64_t kMostBlock = std::int64_t{1} << 30;
  static constexpr int kMostUnderWay = 4096;
  static constexpr int kMostThreads = 1024;
  /// Bytes of the whole 4 KiB pages that hold `bytes`.
  static constexpr std::int64_t whole_pages(std::int64_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
  }

  std::int64_t block_size = 1 << 20;  ///< Bytes of the largest piece; a multiple of 4,096.
  int queue_depth = 8;                ///< Pieces under way at a time.
  int intra_op_parallelism = 1;       ///< Threads, where io_uring is refused.
  bool single_submit = false;         ///< One system call a piece.
  bool overlap_events = true;         ///< False: no piece is started while others are under way.
  int rank = 0;                       ///< In traces and messages.
  /// Nothing that is under way has ended for so long: the drive is given up. At least 1 ms.
  std::chrono::milliseconds stall_limit{30'000};
  IoPortFactory port;  ///< Null: open_io_port.
};

/// Throws Error(kInvalid) that names the first option out of its range.
void require_in_range(const IoOptions& options);

/// What went to drives and came from them so far.
struct IoCounters {
  std::int64_t read_bytes = 0;
  std::int64_t written_bytes = 0;
};

}  // namespace zero3d
