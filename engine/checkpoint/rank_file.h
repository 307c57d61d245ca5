// The one file that a rank writes of a checkpoint: bytes of tensors one after the other. They are
// copied to buffers of pinned memory in the order of the streams that own them, and written from
// there by a stream of its own; the host waits for neither. Where the buffers hold all of the file,
// nothing waits for the drive; else the copies wait for buffers to be written. A write that fails
// fails nothing but the file. Used from one host thread.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/core/multiples.h"
#include "zero3d/device/device.h"
#include "zero3d/engine/checkpoint/manifest.h"

namespace zero3d {

class RankFile {
 public:
  /// For `bytes` in all, to be written to `path`; `whole`: with buffers for all of them. Throws
  /// OutOfMemory.
  RankFile(Device& device, const std::string& path, std::int64_t bytes, bool whole);
  /// Waits for what is under way.
  ~RankFile();

  /// Bytes that a block of `bytes` takes in the file: whole multiples of kAlignment.
  static constexpr std::int64_t kAlignment = 8;
  static std::int64_t block_bytes(std::int64_t bytes) { return round_up(bytes, kAlignment); }
  /// Bytes of buffers that the constructor takes of what is `available`; 0 when `whole` does not
  /// have them, and else the least that will do.
  static std::int64_t buffer_bytes(std::int64_t available, std::int64_t bytes, bool whole);
  static constexpr std::int64_t kMost = std::int64_t{1} << 62;  ///< Bytes of a file.

  /// A new block begins: where it lies in the file.
  std::int64_t begin_block();
  /// Enqueues on `stream` the copy of `values`, device or host memory of the device, behind what is
  /// there.
  void append(Stream& stream, const ConstView& values);
  /// The same for values that another recorder brings: bring(target, free) copies them to host
  /// memory once `free` is passed, and returns the point where they are there.
  void append(
      std::int64_t bytes, DType dtype,
      const std::function<Event(std::int64_t first, const View& target, const Event& free)>& bring);
  /// All that is to be written is appended: the file becomes durable behind that.
  void finish();
  /// Whether it is durable or has failed.
  bool done() const { return end_.done(); }
  /// Waits until it is; throws the first error: an IoError of the file.
  ManifestFile wait();

 private:
  struct Output;
  struct Buffer {
    View bytes;
    Event free;  ///< It is written.
    std::vector<Stream*> writers;
    std::vector<Event> brought;
    std::int64_t used = 0;
  };
  Buffer& room();
  void join(Buffer& buffer, Stream& stream);
  void submit();

  Device& device_;
  std::shared_ptr<Output> output_;
  Tensor memory_;
  std::vector<Buffer> buffers_;
  std::size_t current_ = 0;
  std::int64_t size_ = 0;  ///< Appended so far.
  Event end_;
  std::unique_ptr<Stream> stream_;  ///< Last: its work ends before what it uses is gone.
};

}  // namespace zero3d
