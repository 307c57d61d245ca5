// The io_uring port. Files and buffers are registered where the system takes them; wake() writes to
// an event descriptor of which a read is always under way in the ring.
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "zero3d/core/descriptor.h"
#include "zero3d/core/error.h"
#include "zero3d/offload/io_port.h"

namespace zero3d {
namespace {

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};
constexpr std::size_t kLargestBuffer = std::size_t{1} << 30;  // of one registered buffer
constexpr std::size_t kMostBuffers = 1024;                    // what older kernels take

[[noreturn]] void refuse(int code, const char* what) { throw IoError("io_uring", code, what); }

class RingPort final : public IoPort {
 public:
  explicit RingPort(const IoPortOptions& options) : single_(options.single_submit) {
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC));
    if (!wake_) refuse(errno, "cannot make an event descriptor");
    // One more entry for the read of the event descriptor.
    const int code = ::io_uring_queue_init(static_cast<unsigned>(options.depth) + 1, &ring_, 0);
    if (code < 0) refuse(-code, "the system refuses a ring");
    read_wake();
    try {
      submit();
    } catch (...) {
      ::io_uring_queue_exit(&ring_);
      throw;
    }
  }
  ~RingPort() override { ::io_uring_queue_exit(&ring_); }

  std::string_view name() const override { return "io_uring"; }

  int attach_files(std::span<const int> descriptors) override {
    if (descriptors.empty()) return 0;
    const int code = ::io_uring_register_files(&ring_, descriptors.data(),
                                               static_cast<unsigned>(descriptors.size()));
    files_ = code == 0;
    return -code;
  }

  int attach_buffers(std::span<const View> buffers) override {
    std::vector<iovec> parts;
    for (const View& buffer : buffers) {
      for (std::size_t at = 0; at < buffer.bytes(); at += kLargestBuffer)
        parts.push_back({buffer.data() + at, std::min(kLargestBuffer, buffer.bytes() - at)});
    }
    if (parts.empty()) return 0;
    if (parts.size() > kMostBuffers) return E2BIG;
    const int code =
        ::io_uring_register_buffers(&ring_, parts.data(), static_cast<unsigned>(parts.size()));
    if (code == 0) buffers_ = std::move(parts);
    return -code;
  }

  void start(std::span<const IoPiece> pieces) override {
    for (const IoPiece& piece : pieces) {
      prepare(piece);
      if (single_) submit();
    }
    submit();
  }

  void wait(std::vector<IoDone>& done, std::chrono::milliseconds limit) override {
    io_uring_cqe* first = nullptr;
    __kernel_timespec time = {};
    time.tv_sec = limit.count() / 1000;
    time.tv_nsec = limit.count() % 1000 * 1'000'000;
    const int code = ::io_uring_wait_cqe_timeout(&ring_, &first, &time);
    if (code < 0 && code != -ETIME && code != -EINTR && code != -EAGAIN)
      refuse(-code, "cannot wait for the end of reads and writes");
    unsigned head = 0, seen = 0;
    bool woken = false;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
      ++seen;
      if (entry->user_data == kWakeTag)
        woken = true;
      else if (entry->user_data != LIBURING_UDATA_TIMEOUT)
        done.push_back({entry->user_data, entry->res});
    }
    ::io_uring_cq_advance(&ring_, seen);
    if (!woken) return;
    read_wake();
    submit();
  }

  void wake() override {
    const std::uint64_t one = 1;
    // Fails only where the count is full, and then a wake is under way.
    [[maybe_unused]] const ssize_t written = ::write(wake_.value(), &one, sizeof one);
  }

 private:
  io_uring_sqe* entry() {
    io_uring_sqe* free = ::io_uring_get_sqe(&ring_);
    if (free == nullptr) {
      submit();
      free = ::io_uring_get_sqe(&ring_);
    }
    ZERO3D_CHECK(free != nullptr, "more pieces than the ring has entries");
    return free;
  }

  void read_wake() {
    io_uring_sqe* read = entry();
    ::io_uring_prep_read(read, wake_.value(), &wakes_, sizeof wakes_, 0);
    ::io_uring_sqe_set_data64(read, kWakeTag);
  }

  /// Of the registered buffer that holds all of the piece; negative: none.
  int buffer_of(const IoPiece& piece) const {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const auto* begin = static_cast<const std::byte*>(buffers_[i].iov_base);
      if (piece.data >= begin && piece.data + piece.bytes <= begin + buffers_[i].iov_len)
        return static_cast<int>(i);
    }
    return -1;
  }

  void prepare(const IoPiece& piece) {
    io_uring_sqe* sqe = entry();
    const int file = files_ ? piece.file : piece.descriptor;
    const auto offset = static_cast<std::uint64_t>(piece.offset);
    const int buffer = buffer_of(piece);
    if (buffer >= 0 && piece.write)
      ::io_uring_prep_write_fixed(sqe, file, piece.data, piece.bytes, offset, buffer);
    else if (buffer >= 0)
      ::io_uring_prep_read_fixed(sqe, file, piece.data, piece.bytes, offset, buffer);
    else if (piece.write)
      ::io_uring_prep_write(sqe, file, piece.data, piece.bytes, offset);
    else
      ::io_uring_prep_read(sqe, file, piece.data, piece.bytes, offset);
    if (files_) sqe->flags |= IOSQE_FIXED_FILE;
    ::io_uring_sqe_set_data64(sqe, piece.tag);
  }

  /// All that is prepared.
  void submit() {
    while (::io_uring_sq_ready(&ring_) > 0) {
      const int code = ::io_uring_submit(&ring_);
      if (code < 0 && code != -EINTR && code != -EAGAIN && code != -EBUSY)
        refuse(-code, "cannot start reads and writes");
    }
  }

  const bool single_;
  Descriptor wake_;
  std::uint64_t wakes_ = 0;
  io_uring ring_ = {};
  bool files_ = false;
  std::vector<iovec> buffers_;
};

}  // namespace

std::unique_ptr<IoPort> make_ring_port(const IoPortOptions& options) {
  return std::make_unique<RingPort>(options);
}

}  // namespace zero3d
