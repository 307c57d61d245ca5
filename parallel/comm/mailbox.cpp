#include "zero3d/parallel/comm/mailbox.h"

#include <cstring>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {
namespace {

std::int64_t count_of(const ConstView& view) { return view.defined() ? view.numel() : 0; }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

std::string Mailbox::mismatch(std::int64_t sent, DType sent_dtype, const View& expected) const {
  if (sent == count_of(expected) && sent_dtype == expected.dtype()) return {};
  return concat("rank ", source_, " sends ", sent, " x ", name_of(sent_dtype), " but rank ",
                target_, " receives ", count_of(expected), " x ", name_of(expected.dtype()));
}

void Mailbox::fail(int rank, const char* operation, const std::string& reason) {
  world().abort(rank, reason);
  throw CommError(rank, operation, concat(operation, ": ", reason));
}

void Mailbox::put(const ConstView& data) {
  world().check("send");
  std::string wrong;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_ != nullptr) {
      wrong = mismatch(count_of(data), data.dtype(), *waiting_);
      if (wrong.empty()) {
        copy_bytes(waiting_->data(), data.data(), data.bytes());
        waiting_ = nullptr;
      }
    } else {
      Message message{std::move(spare_), count_of(data), data.dtype()};
      message.bytes.resize(data.bytes());
      copy_bytes(message.bytes.data(), data.data(), data.bytes());
      queue_.push_back(std::move(message));
    }
  }
  if (!wrong.empty()) fail(source_, "send", wrong);
  condition_.notify_one();
}

void Mailbox::take(const View& data) {
  world().check("recv");
  const auto deadline = std::chrono::steady_clock::now() + world().timeout();
  std::string wrong;
  bool late = false, absent = false;
  {
    std::unique_lock lock(mutex_);
    if (queue_.empty()) {
      waiting_ = &data;
      condition_.wait_until(
          lock, deadline, [&] { return waiting_ == nullptr || source_left_ || world().aborted(); });
      if (waiting_ == nullptr) return;
      waiting_ = nullptr;
      late = true;
      absent = source_left_;
    } else {
      Message message = std::move(queue_.front());
      queue_.pop_front();
      wrong = mismatch(message.numel, message.dtype, data);
      if (wrong.empty()) copy_bytes(data.data(), message.bytes.data(), message.bytes.size());
      spare_ = std::move(message.bytes);
    }
  }
  if (!wrong.empty()) fail(target_, "recv", wrong);
  if (!late) return;
  if (absent)
    world().abort(source_, concat("it ended while rank ", target_, " waited for its message"));
  world().check("recv");
  fail(target_, "recv",
       concat("rank ", target_, " waited ", world().timeout().count(),
              " ms for a message from rank ", source_));
}

void Mailbox::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    source_left_ = true;
  }
  condition_.notify_all();
}

}  // namespace zero3d::detail
