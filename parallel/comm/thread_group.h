// A group of ranks that are threads of one process: where they agree. A rank posts what it is about
// to do when it enqueues it, and waits for nobody; the last to post compares. What follows are
// points that the ranks' streams pass together: events, completed by the last stream to arrive.
// Internal to the thread communicator.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zero3d/device/event_state.h"
#include "zero3d/parallel/comm/call.h"
#include "zero3d/parallel/comm/comm_world.h"

namespace zero3d::detail {

/// A point of an operation, at which streams arrive without a lock.
struct Point {
  EventState passed;
  bool used = false;
  std::atomic<bool> over{false};  ///< The event is completed, or about to be.
  std::atomic<int> arrived{0};
  std::atomic<int> first{-1};  ///< Who has waited for it longest, and since when.
  Clock::time_point since;     ///< Before `first`.

  void begin_wait(int rank) {
    since = Clock::now();
    first.store(rank, std::memory_order_release);
  }
  /// The point as an event; `owner` holds it.
  Event event(std::shared_ptr<void> owner) {
    return Event(std::shared_ptr<EventState>(std::move(owner), &passed));
  }
};

/// One collective, guarded by the group but for its points. A member's call may be read by all from
/// the passing of point 0, and its memory until that of the last.
struct Meeting {
  struct Member {
    Call call;
    std::vector<std::byte> staged;  ///< A copy of a small input, for the peers to read.
    bool posted = false;
    std::atomic<bool> arrived{false};  ///< At point 0.
    /// Where a GPU's stream has come to the points, which its worker only hands on.
    std::array<Event, 3> reached;
  };
  Meeting(std::size_t size, std::int64_t number) : members(size), sequence(number) {}
  std::vector<Member> members;
  const std::int64_t sequence;
  std::size_t posts = 0;
  std::array<Point, 3> points;
};

/// One message from rank to rank. It goes straight into the receiver's memory when that one's
/// stream already waits, else into a buffer, so that the sender never waits.
struct Message {
  std::optional<Part> sent;
  std::optional<Part> expected;
  bool wanted = false;  ///< The receiver's stream waits.
  bool direct = false;  ///< The sender writes to the receiver's memory, or has.
  std::vector<std::byte> bytes;
  Point arrival;
};

class ThreadGroup final : public WaitingRoom {
 public:
  ThreadGroup(std::shared_ptr<CommWorld> world, std::vector<int> members);
  ~ThreadGroup() override;

  CommWorld& world() const { return *world_; }
  int size() const { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  const std::string& description() const { return description_; }
  void check(int rank) const { world_->failure().check(world_rank(rank)); }
  void fail(int rank, const std::exception_ptr& cause) const noexcept {
    world_->fail(world_rank(rank), cause);
  }

  /// Posts rank `rank`'s next collective, of so many points. Throws the world's failure, also when
  /// it finds that the ranks disagree or that one has left.
  std::shared_ptr<Meeting> post(int rank, Call call, int points);
  /// The rank's stream has come to a point, or failed before: then nobody passes.
  void arrive(Meeting& meeting, int point, int rank, const std::exception_ptr& error) noexcept;
  /// A collective of the hosts: all ranks' values. Blocks.
  std::vector<std::string> exchange(int rank, Call call);

  /// Posts the sender's or the receiver's end of the next message from `source` to `target`.
  std::shared_ptr<Message> post_message(int source, int target, bool sends, const Part& part);
  /// On the sender's stream: where its bytes go. Then that they are there, or that it failed.
  std::byte* place(Message& message, int source, int target);
  void sent(Message& message, int source, const std::exception_ptr& error) noexcept;
  /// The receiver's stream has come to the message, or failed before; and has done with its buffer.
  void wanted(Message& message, int target, const std::exception_ptr& error) noexcept;
  void taken(Message& message, int source, int target);

  /// Rank `rank` posts nothing more: who waits for that fails.
  void leave(int rank);
  /// The group of `members` (indices into this one) made by the `sequence`th split; every member
  /// asks once.
  std::shared_ptr<ThreadGroup> child(std::int64_t sequence, std::vector<int> members);

  void end_waits() noexcept override;
  std::optional<Late> late(Clock::time_point limit) override;

 private:
  /// Collectives in the order of their calls; streams and hosts have an order each.
  struct Lane {
    std::deque<std::shared_ptr<Meeting>> open;  ///< Without those that all have passed.
    std::vector<std::int64_t> next;             ///< The sequence of each rank's next.
  };
  /// Messages in the order of their calls.
  struct Channel {
    std::deque<std::shared_ptr<Message>> open;  ///< Without those that have arrived.
    std::size_t sends = 0, receives = 0;        ///< How many of them are posted.
    std::vector<std::byte> spare;  ///< An emptied buffer: a steady pipeline allocates nothing.
  };
  std::shared_ptr<Meeting> post(Lane& lane, int rank, Call call, int points);
  /// With the mutex held.
  void start(Point& point) const;
  /// Lets the streams pass, unless somebody else did: then false.
  bool finish(Point& point) noexcept;
  /// Why it cannot come to pass: the ranks disagree, or one left; a failure of that rank.
  struct Trouble {
    int rank = -1;
    std::string message;
  };
  Trouble trouble(const Meeting& meeting, int rank) const;
  void check(const Trouble& trouble, int rank, const char* operation) const;

  const std::shared_ptr<CommWorld> world_;
  const std::vector<int> members_;  ///< World ranks.
  const std::string description_;
  const std::shared_ptr<const Recorder> recorder_;

  std::mutex mutex_;  ///< Guards what follows, and what it holds.
  Lane streams_;
  Lane hosts_;
  std::map<std::pair<int, int>, Channel> channels_;  ///< By source and target.
  std::vector<bool> left_;
  struct Child {
    std::shared_ptr<ThreadGroup> group;
    std::size_t to_come = 0;
  };
  std::mutex children_mutex_;
  std::map<std::pair<std::int64_t, int>, Child> children_;  ///< By sequence and first member.
};

}  // namespace zero3d::detail
