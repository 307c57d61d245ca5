// Messages from one rank to another inside a process, in order. Internal to the thread
// communicator.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/parallel/comm/comm_world.h"

namespace zero3d::detail {

/// One direction between two ranks. A message goes straight into the receiver's memory when it
/// already waits there, else into a buffer, so that the sender never waits. Copies happen under the
/// mailbox's mutex, which only these two ranks use: an aborted receiver cannot leave while its
/// memory is written.
class Mailbox final : public WaitPoint {
 public:
  Mailbox(CommWorld& world, int source, int target)
      : WaitPoint(world), source_(source), target_(target) {}

  /// Both throw CommAborted, and CommError when the message is not what the receiver expects.
  void put(const ConstView& data);
  void take(const View& data);
  /// The source will send nothing more: ends the wait of the target, now and later.
  void leave() noexcept;

 private:
  struct Message {
    std::vector<std::byte> bytes;
    std::int64_t numel = 0;
    DType dtype = DType::f32;
  };
  /// "" when equal, else what both sides say.
  std::string mismatch(std::int64_t sent, DType sent_dtype, const View& expected) const;
  [[noreturn]] void fail(int rank, const char* operation, const std::string& reason);

  const int source_;  ///< World ranks.
  const int target_;
  std::deque<Message> queue_;
  std::vector<std::byte> spare_;  ///< The last emptied buffer: a steady pipeline allocates nothing.
  const View* waiting_ = nullptr;
  bool source_left_ = false;
};

}  // namespace zero3d::detail
