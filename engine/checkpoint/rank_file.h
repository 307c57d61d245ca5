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
#include <utility>
#include <vector>

#include "zero3d/core/multiples.h"
#include "zero3d/device/device.h"
#include "zero3d/engine/checkpoint/manifest.h"

namespace zero3d {

class RankFile {
 public:
  /// To be written to `path`, through buffers in `memory`: bytes of pinned memory, as many as
  /// whole_buffers() or some_buffers() tells.
  RankFile(Device& device, const std::string& path, Tensor memory);
  /// Waits for what is under way.
  ~RankFile();

  /// Bytes that a block of `bytes` takes in the file: whole multiples of kAlignment.
  static constexpr std::int64_t kAlignment = 8;
  static std::int64_t block_bytes(std::int64_t bytes) { return round_up(bytes, kAlignment); }
  /// Bytes of buffers that hold all of a file of `bytes`.
  static std::int64_t whole_buffers(std::int64_t bytes);
  /// Of a few that it is written through, best no more than `room` bytes.
  static std::int64_t some_buffers(std::int64_t bytes, std::int64_t room);

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
  /// What is appended from here on is not written before write_held(): the buffers have room for
  /// it. Copies that somebody waits for then need not share processors with the writing.
  void hold() { holds_ = true; }
  void write_held();
  /// All that is to be written is appended: the file becomes durable behind that.
  void finish();
  /// Whether it is durable or has failed.
  bool done() const { return end_.done(); }
  /// Waits until it is; throws the first error: an IoError of the file.
  ManifestFile wait();
  /// After wait(): for the next file.
  Tensor take_memory() { return std::move(memory_); }

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
  void write(Buffer& buffer);

  Device& device_;
  std::shared_ptr<Output> output_;
  Tensor memory_;
  std::vector<Buffer> buffers_;
  std::size_t current_ = 0;
  bool holds_ = false;
  std::vector<std::size_t> held_;  ///< Full buffers that wait for write_held(), in order.
  std::int64_t size_ = 0;          ///< Appended so far.
  Event end_;
  std::unique_ptr<Stream> stream_;  ///< Last: its work ends before what it uses is gone.
};

}  // namespace zero3d
