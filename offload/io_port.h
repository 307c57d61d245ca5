// What an I/O queue asks of the system, as a seam: start reads and writes, and tell which are over.
// Behind it are io_uring and a pool of threads; tests put decorators there that fail, cut short or
// hold back what passes. One thread calls all of it, except wake().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/offload/io_options.h"

namespace zero3d {

/// One read or write of at most 1 GiB.
struct IoPiece {
  std::uint64_t tag = 0;  ///< Comes back with its end; of no other piece under way.
  bool write = false;
  int file = 0;        ///< Index into what attach_files got.
  int descriptor = 0;  ///< Of that file.
  std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  std::int64_t offset = 0;
};

/// The end of a piece.
struct IoDone {
  std::uint64_t tag = 0;
  int result = 0;  ///< Bytes moved, perhaps fewer than asked for; or a negative errno.
};

class IoPort {
 public:
  virtual ~IoPort() = default;
  virtual std::string_view name() const = 0;  ///< "io_uring", "threads".

  /// What pieces will name and where their memory lies, told once before the first piece so that
  /// the system need not look it up each time. An errno when it does not take them (the limit of
  /// locked memory): pieces work all the same. 0: taken, or of no use to this port.
  virtual int attach_files(std::span<const int> descriptors) = 0;
  virtual int attach_buffers(std::span<const View> buffers) = 0;

  /// Starts pieces, with those under way never more than the port's depth. Throws IoError when the
  /// system takes none any more.
  virtual void start(std::span<const IoPiece> pieces) = 0;
  /// Appends what is over; waits until something is, wake() was called since the last wait, or
  /// `limit` has passed.
  virtual void wait(std::vector<IoDone>& done, std::chrono::milliseconds limit) = 0;
  virtual void wake() = 0;  ///< From any thread.
};

struct IoPortOptions {
  int depth = 8;               ///< Pieces under way at a time.
  int threads = 1;             ///< Of the pool.
  bool single_submit = false;  ///< One system call a piece (io_uring).
  bool tells = true;           ///< In the log, what is used where a ring is refused.
};

/// A pool of threads that each do one read or write at a time.
std::unique_ptr<IoPort> make_thread_port(const IoPortOptions& options);
/// io_uring. Throws IoError with the errno where the system (or a container's rules) refuses it,
/// with ENOSYS in a build without liburing.
std::unique_ptr<IoPort> make_ring_port(const IoPortOptions& options);
/// The ring, or threads and a line in the log where that is refused.
std::unique_ptr<IoPort> open_io_port(const IoPortOptions& options,
                                     const IoPortFactory& ring = make_ring_port);

}  // namespace zero3d
