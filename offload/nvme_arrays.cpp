#include "zero3d/offload/nvme_arrays.h"

#include <algorithm>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr std::int64_t kPage = IoTransfer::kPage;

/// The events of `writes` that touch [begin, end).
template <typename Writes>
void append_overlapping(const Writes& writes, std::int64_t begin, std::int64_t end,
                        std::vector<Event>& events) {
  for (const auto& write : writes)
    if (write.begin < end && begin < write.end) events.push_back(write.done);
}

}  // namespace

NvmeArrays::NvmeArrays(Device& device, const std::vector<std::int64_t>& bytes,
                       const NvmeArraysOptions& options, Stream& in, Stream& out)
    : device_(device), in_(in), out_(out) {
  ZERO3D_CHECK(
      options.buffer_count > 0 && options.buffer_bytes > 0 && options.buffer_bytes % kPage == 0,
      "buffers of whole pages");
  place_arrays(bytes, options);
  memory_ =
      Tensor(device.memory(Tier::pinned), kNoStream, DType::u8,
             Shape{buffer_memory(options.buffer_count, options.buffer_bytes)}, options.category);
  buffers_.resize(static_cast<std::size_t>(options.buffer_count));
  std::int64_t begin = 0;
  for (Buffer& buffer : buffers_) {
    buffer.memory = memory_.view().flat(begin, options.buffer_bytes);
    begin += options.buffer_bytes;
  }
  const View buffers[] = {memory_.view()};
  queue_ = std::make_unique<IoQueue>(device, options.name, options.io, folder_->files(), buffers);
}

NvmeArrays::~NvmeArrays() {
  if (!queue_->drain()) keep_for_drives(std::move(memory_));
}

/// From 64 KiB on memory begins at a page, as direct I/O wants it.
std::int64_t NvmeArrays::buffer_memory(int count, std::int64_t bytes) {
  return std::max<std::int64_t>(64 << 10, count * bytes);
}

void NvmeArrays::place_arrays(const std::vector<std::int64_t>& bytes,
                              const NvmeArraysOptions& options) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : bytes) sizes.push_back(round_up(size, kPage));
  folder_ = std::make_unique<SwapFolder>(options.paths, concat(options.name, "-", options.io.rank),
                                         options.direct);
  const std::vector<SwapFolder::Place> places =
      folder_->reserve(sizes, concat("the ", options.name, " of rank ", options.io.rank));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Array& array = arrays_.emplace_back();
    array.bytes = bytes[i];
    array.place = places[i];
    if (options.checksums) array.checksums.resize(static_cast<std::size_t>(sizes[i] / kPage));
  }
}

void NvmeArrays::raise() const {
  if (const std::exception_ptr error = queue_->error()) std::rethrow_exception(error);
}

void NvmeArrays::finish() {
  queue_->drain();
  raise();
}

/// In turn: the one that has been in use for the longest.
NvmeArrays::Buffer& NvmeArrays::next_buffer() {
  Buffer& buffer = buffers_[next_];
  next_ = (next_ + 1) % buffers_.size();
  return buffer;
}

IoTransfer NvmeArrays::transfer(Array& array, std::int64_t begin, const View& memory, bool write) {
  IoTransfer moved{write, array.place.file, array.place.offset + begin, memory, nullptr};
  if (!array.checksums.empty()) moved.checksums = array.checksums.data() + begin / kPage;
  return moved;
}

/// Reads into `pages` of the buffer, whose first byte is that at `begin` of the array.
Event NvmeArrays::fetch(Array& from, std::int64_t begin, const Buffer& buffer,
                        const std::vector<View>& pages) {
  std::vector<IoTransfer> transfers;
  std::vector<Event> after;
  if (buffer.free.recorded()) after.push_back(buffer.free);
  for (const View& page : pages) {
    const std::int64_t first = begin + (page.data() - buffer.memory.data());
    append_overlapping(from.writes, first, first + page.numel(), after);
    transfers.push_back(transfer(from, first, page, false));
  }
  return queue_->submit("read from drive", std::move(transfers), after);
}

void NvmeArrays::read(int index, std::int64_t begin, const View& target) {
  raise();
  Array& from = array(index);
  const View bytes(target.data(), DType::u8, Shape{static_cast<std::int64_t>(target.bytes())});
  ZERO3D_CHECK(begin >= 0 && begin + bytes.numel() <= from.bytes, "a range of the array");
  for (std::int64_t done = 0; done < bytes.numel();) {
    Buffer& buffer = next_buffer();
    const std::int64_t at = begin + done;
    const std::int64_t offset = at % kPage;
    const std::int64_t count = std::min(buffer.memory.numel() - offset, bytes.numel() - done);
    const View pages = buffer.memory.flat(0, round_up(offset + count, kPage));
    in_.wait(fetch(from, at - offset, buffer, {pages}));
    device_.copy(in_, bytes.flat(done, count), buffer.memory.flat(offset, count));
    in_.record(buffer.free);
    done += count;
  }
}

/// Fetches the pages that bytes [begin, begin + count) fill in part, for `out`: the buffer's first
/// byte is that of the page in which `begin` lies.
void NvmeArrays::keep_edges(Array& to, std::int64_t begin, std::int64_t count,
                            const Buffer& buffer) {
  const std::int64_t first = begin / kPage * kPage;
  const std::int64_t end = begin + count;
  const std::int64_t last = (end - 1) / kPage * kPage;
  const bool cuts_end = end % kPage != 0 && end != to.bytes;
  std::vector<View> pages;
  if (begin > first || (cuts_end && last == first)) pages.push_back(buffer.memory.flat(0, kPage));
  if (cuts_end && last != first) pages.push_back(buffer.memory.flat(last - first, kPage));
  if (!pages.empty()) out_.wait(fetch(to, first, buffer, pages));
}

/// Puts the buffer's bytes at `begin`, once `ready` is passed.
void NvmeArrays::store(Array& to, std::int64_t begin, Buffer& buffer, std::int64_t bytes,
                       const Event& ready) {
  const std::int64_t end = begin + bytes;
  std::vector<Event> after = {ready};
  append_overlapping(to.writes, begin, end, after);
  buffer.free = queue_->submit("write to drive",
                               {transfer(to, begin, buffer.memory.flat(0, bytes), true)}, after);
  // Writes that the new one covers it also comes after.
  std::erase_if(to.writes, [&](const Write& old) { return begin <= old.begin && old.end <= end; });
  to.writes.push_back({begin, end, buffer.free});
}

Event NvmeArrays::write(int index, std::int64_t begin, const ConstView& values,
                        const Event& ready) {
  raise();
  Array& to = array(index);
  const ConstView bytes(values.data(), DType::u8, Shape{static_cast<std::int64_t>(values.bytes())});
  ZERO3D_CHECK(begin >= 0 && begin + bytes.numel() <= to.bytes, "a range of the array");
  out_.wait(ready);
  for (std::int64_t done = 0; done < bytes.numel();) {
    Buffer& buffer = next_buffer();
    const std::int64_t at = begin + done;
    const std::int64_t offset = at % kPage;
    const std::int64_t count = std::min(buffer.memory.numel() - offset, bytes.numel() - done);
    if (buffer.free.recorded()) out_.wait(buffer.free);
    keep_edges(to, at, count, buffer);
    device_.copy(out_, buffer.memory.flat(offset, count), bytes.flat(done, count));
    Event copied;
    out_.record(copied);
    store(to, at - offset, buffer, round_up(offset + count, kPage), copied);
    done += count;
  }
  Event copied;
  out_.record(copied);
  return copied;
}

}  // namespace zero3d
