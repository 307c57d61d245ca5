#include "zero3d/engine/checkpoint/rank_file.h"

#include <algorithm>
#include <filesystem>

#include "zero3d/core/output_file.h"
#include "zero3d/engine/checkpoint/file_sums.h"

namespace zero3d {
namespace {

constexpr std::int64_t kBuffer = FileSums::kChunkBytes;
constexpr std::int64_t kBuffers = 3;

ConstView as_bytes(const ConstView& view) {
  return ConstView(view.data(), DType::u8, Shape{static_cast<std::int64_t>(view.bytes())});
}

}  // namespace

/// What the writing stream alone touches until the end.
struct RankFile::Output {
  explicit Output(const std::string& path) : file(path) {}

  template <typename Work>
  void attempt(const Work& work) noexcept {
    if (error) return;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
  }
  void write(const ConstView& bytes) {
    attempt([&] {
      sums.add(bytes);
      file.write(bytes.data(), bytes.bytes());
    });
  }

  OutputFile file;
  FileSums sums;
  std::exception_ptr error;
};

std::int64_t RankFile::whole_buffers(std::int64_t bytes) {
  return round_up(std::max<std::int64_t>(bytes, 1), FileSums::kPageBytes);
}

std::int64_t RankFile::some_buffers(std::int64_t bytes, std::int64_t room) {
  const std::int64_t pages = room / FileSums::kPageBytes * FileSums::kPageBytes;
  return std::min(
      {whole_buffers(bytes), kBuffers * kBuffer, std::max(pages, kBuffers * FileSums::kPageBytes)});
}

RankFile::RankFile(Device& device, const std::string& path, Tensor memory)
    : device_(device), output_(std::make_shared<Output>(path)), memory_(std::move(memory)) {
  const std::int64_t buffer_bytes = memory_.numel();
  const std::int64_t third = buffer_bytes / kBuffers / FileSums::kPageBytes * FileSums::kPageBytes;
  const std::int64_t size = std::clamp(third, FileSums::kPageBytes, kBuffer);
  for (std::int64_t at = 0; at < buffer_bytes; at += size)
    buffers_.emplace_back().bytes = memory_.view().flat(at, std::min(size, buffer_bytes - at));
  stream_ = device.create_host_stream("checkpoint");
}

RankFile::~RankFile() {
  try {
    stream_->synchronize();
  } catch (...) {  // of the streams that it waited for, which tell it themselves
  }
}

/// The buffer to be filled next, which has room.
RankFile::Buffer& RankFile::room() {
  if (buffers_[current_].used == buffers_[current_].bytes.numel()) submit();
  return buffers_[current_];
}

/// `stream` is about to write to the buffer.
void RankFile::join(Buffer& buffer, Stream& stream) {
  if (std::find(buffer.writers.begin(), buffer.writers.end(), &stream) != buffer.writers.end())
    return;
  if (buffer.free.recorded()) stream.wait(buffer.free);
  buffer.writers.push_back(&stream);
}

std::int64_t RankFile::begin_block() {
  const std::int64_t gap = block_bytes(size_) - size_;
  if (gap > 0) {  // buffers end at whole pages
    Buffer& buffer = buffers_[current_];
    device_.fill_zero(*stream_, buffer.bytes.flat(buffer.used, gap));
    buffer.used += gap;
    size_ += gap;
  }
  return size_;
}

void RankFile::append(Stream& stream, const ConstView& values) {
  const ConstView bytes = as_bytes(values);
  for (std::int64_t done = 0; done < bytes.numel();) {
    Buffer& buffer = room();
    join(buffer, stream);
    const std::int64_t count = std::min(bytes.numel() - done, buffer.bytes.numel() - buffer.used);
    device_.copy(stream, buffer.bytes.flat(buffer.used, count), bytes.flat(done, count));
    buffer.used += count;
    done += count;
  }
  size_ += bytes.numel();
}

void RankFile::append(std::int64_t bytes, DType dtype,
                      const std::function<Event(std::int64_t, const View&, const Event&)>& bring) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t done = 0; done < bytes;) {
    Buffer& buffer = room();
    const std::int64_t count = std::min(bytes - done, buffer.bytes.numel() - buffer.used);
    ZERO3D_CHECK(count % element == 0, "blocks begin at whole elements of any dtype");
    const View target(buffer.bytes.data() + buffer.used, dtype, Shape{count / element});
    if (!buffer.free.recorded()) stream_->record(buffer.free);
    buffer.brought.push_back(bring(done / element, target, buffer.free));
    buffer.used += count;
    done += count;
  }
  size_ += bytes;
}

/// The current buffer is to be written; the next one is current.
void RankFile::submit() {
  Buffer& buffer = buffers_[current_];
  for (Stream* writer : buffer.writers) {
    Event written;
    writer->record(written);
    buffer.brought.push_back(written);
  }
  buffer.writers.clear();
  if (holds_)
    held_.push_back(current_);
  else
    write(buffer);
  current_ = (current_ + 1) % buffers_.size();
}

void RankFile::write(Buffer& buffer) {
  for (const Event& brought : buffer.brought) stream_->wait(brought);
  buffer.brought.clear();
  const View bytes = buffer.bytes.flat(0, buffer.used);
  stream_->host_task("write checkpoint", {reads(bytes)},
                     [output = output_, bytes] { output->write(bytes); });
  buffer.free = Event();
  stream_->record(buffer.free);
  buffer.used = 0;
}

void RankFile::write_held() {
  holds_ = false;
  for (Stream* writer : buffers_[current_].writers) {
    Event written;
    writer->record(written);
    stream_->wait(written);
  }
  for (const std::size_t held : held_)
    for (const Event& brought : buffers_[held].brought) stream_->wait(brought);
  for (const std::size_t held : held_) write(buffers_[held]);
  held_.clear();
}

void RankFile::finish() {
  if (buffers_[current_].used > 0) submit();
  stream_->host_task("end checkpoint file", {},
                     [output = output_] { output->attempt([&] { output->file.commit(); }); });
  stream_->record(end_);
}

ManifestFile RankFile::wait() {
  end_.wait();
  if (output_->error) std::rethrow_exception(output_->error);
  return {std::filesystem::path(output_->file.path()).filename().string(), output_->sums.bytes(),
          output_->sums.chunks()};
}

}  // namespace zero3d
