// Reads and writes of files that streams, other I/O and the host wait for by events: nobody's
// thread blocks on a drive. A submission starts once the events it comes after are passed; large
// transfers are cut into blocks, of which so many are under way at a time; short ones go on, those
// that the system asks to repeat are repeated, and the others end in IoError with path, errno and
// offset, which travels along events as a stream's does.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/device/device.h"
#include "zero3d/offload/io_file.h"
#include "zero3d/offload/io_options.h"

namespace zero3d {

/// One contiguous piece of a file and of memory.
struct IoTransfer {
  /// A page of a file, of which a checksum may be kept.
  static constexpr std::int64_t kPage = 4096;

  bool write = false;
  int file = 0;  ///< Index into the queue's files.
  std::int64_t offset = 0;
  View memory;
  /// Null, or one for each page: set by a write; held to by a read, where not 0.
  std::uint64_t* checksums = nullptr;
};

class IoQueue {
 public:
  /// For transfers between `files` and memory of `device`, best in `buffers`. Throws
  /// Error(kInvalid) for options out of range.
  IoQueue(Device& device, std::string name, IoOptions options,
          std::vector<std::shared_ptr<const IoFile>> files, std::span<const View> buffers);
  /// Waits for all work as drain() does. Work that a drive holds back beyond the limit is left to
  /// it, and so must its memory be.
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  /// Enqueues transfers of one purpose, in no order among them, that start after `after`; returns
  /// the point where all are over. Throws Error(kInvalid) for transfers past the page cache that
  /// are not aligned, Error(kHazard) as a launch does.
  Event submit(std::string what, std::vector<IoTransfer> transfers, std::span<const Event> after);

  /// The first error of all work so far, null if none.
  std::exception_ptr error() const;
  /// Blocks until all work is over. False when a drive still holds work back two seconds after it
  /// was given up.
  bool drain();

  IoCounters counters() const;
  std::string_view port() const;  ///< What it runs on: "io_uring", "threads".

 private:
  class Core;
  Device& device_;
  std::shared_ptr<Core> core_;
};

/// After drain() was false: a drive may still read or write this memory, so nobody gets it again.
void keep_for_drives(Tensor memory) noexcept;

}  // namespace zero3d
