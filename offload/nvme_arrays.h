// Flat arrays on drives, of which streams read and write any part through a few buffers of pinned
// memory. A read is submitted when it is asked for, so that drives run ahead of the stream
// that copies to the device; nobody's thread waits for one. Used from one host thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/offload/io_queue.h"
#include "zero3d/offload/swap_folder.h"

namespace zero3d {

struct NvmeArraysOptions {
  std::string name;                ///< Of the queue and of the files: "parameters".
  std::vector<std::string> paths;  ///< One per drive; arrays lie on them in turn.
  int buffer_count = 1;
  std::int64_t buffer_bytes = 0;             ///< Of one buffer: a multiple of 4 KiB.
  Category category = Category::parameters;  ///< Of the buffers.
  bool direct = true;                        ///< Past the page cache, where the file system can.
  bool checksums = false;  ///< What is read is held to what was written, page by page.
  IoOptions io;
};

/// A drive's error ends the stream that waits for it, and the next call of the host: IoError with
/// path, errno and offset.
class NvmeArrays {
 public:
  /// `bytes` of each array; 0: it is not on a drive. Copies to the device run on `in`, those from
  /// it on `out`; both outlive this. What the arrays hold at first is not defined.
  NvmeArrays(Device& device, const std::vector<std::int64_t>& bytes,
             const NvmeArraysOptions& options, Stream& in, Stream& out);
  /// Waits for all work on the drives; the streams' work is over.
  ~NvmeArrays();

  /// Pinned bytes of so many buffers.
  static std::int64_t buffer_memory(int count, std::int64_t bytes);

  /// Enqueues target = the bytes from `begin` on, on `in`, after the writes of them so far. What is
  /// larger than a buffer comes in pieces.
  void read(int array, std::int64_t begin, const View& target);
  /// Bytes from `begin` on become `values`, host or device memory, once `ready` is passed: after
  /// that all reads of them so far must be over. Returns the point from which `values` may change.
  /// The range may begin and end within a page of 4 KiB: what else that holds is read for it first,
  /// where it is not the array's last.
  Event write(int array, std::int64_t begin, const ConstView& values, const Event& ready);
  /// Blocks the host until the drives have all that was written, and throws the first error.
  void finish();

  IoCounters counters() const { return queue_->counters(); }

 private:
  /// Bytes that a write which may not be over yet puts on the drive.
  struct Write {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    Event done;
  };
  struct Array {
    std::int64_t bytes = 0;
    SwapFolder::Place place;
    std::vector<Write> writes;
    std::vector<std::uint64_t> checksums;  ///< By page; empty: none are kept.
  };
  struct Buffer {
    View memory;
    Event free;  ///< The last use of it.
  };

  void place_arrays(const std::vector<std::int64_t>& bytes, const NvmeArraysOptions& options);
  Array& array(int index) { return arrays_[static_cast<std::size_t>(index)]; }
  Buffer& next_buffer();
  IoTransfer transfer(Array& array, std::int64_t begin, const View& memory, bool write);
  Event fetch(Array& from, std::int64_t begin, const Buffer& buffer,
              const std::vector<View>& pages);
  void keep_edges(Array& to, std::int64_t begin, std::int64_t count, const Buffer& buffer);
  void store(Array& to, std::int64_t begin, Buffer& buffer, std::int64_t bytes, const Event& ready);
  /// The host learns of an error at its next call.
  void raise() const;

  Device& device_;
  Stream& in_;
  Stream& out_;
  std::vector<Array> arrays_;
  std::unique_ptr<SwapFolder> folder_;
  Tensor memory_;
  std::vector<Buffer> buffers_;
  std::size_t next_ = 0;
  std::unique_ptr<IoQueue> queue_;
};

}  // namespace zero3d
