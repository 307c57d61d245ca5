// One rank's face of a ThreadGroup: each operation is agreed on when it is enqueued, and moves data
// on the stream between the points that the group's streams pass together.
#include "zero3d/parallel/comm/thread_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/mover.h"
#include "zero3d/parallel/comm/thread_group.h"

namespace zero3d {
namespace detail {
namespace {

/// An all_reduce up to this many bytes is copied to where all can read it and summed whole by every
/// rank: two meetings less beat sharing the work.
constexpr std::int64_t kSmallAllReduce = 16384;

using MeetingPtr = std::shared_ptr<Meeting>;

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }
std::int64_t bytes_of(const Part& part) { return part.piece * element_bytes(part.in_dtype); }

const Call& call_of(const Meeting& meeting, int rank) {
  return meeting.members[static_cast<std::size_t>(rank)].call;
}
int size_of(const Meeting& meeting) { return static_cast<int>(meeting.members.size()); }

kernels::ReduceSumArgs sum_args(std::span<const void* const> inputs, const Part& part,
                                std::byte* out, std::int64_t count, const ReduceOptions& options) {
  return {inputs,           part.in_dtype,     out,         part.out_dtype, count,
          options.scale_in, options.scale_out, options.wire};
}

/// out[0, count) = the sum of all ranks' part `part` at elements [begin, begin + count).
void sum_ranks(Mover& mover, const Meeting& meeting, std::size_t part, std::int64_t begin,
               std::int64_t count, std::byte* out) {
  const Part& first = call_of(meeting, 0).parts[part];
  std::vector<const void*> inputs;
  for (const Meeting::Member& member : meeting.members)
    inputs.push_back(member.call.parts[part].in + begin * element_bytes(first.in_dtype));
  mover.sum(sum_args(inputs, first, out, count, *call_of(meeting, 0).options));
}

void gather_work(Mover& mover, const Meeting& meeting, int rank) {
  const std::vector<Part>& parts = call_of(meeting, rank).parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t bytes = bytes_of(parts[i]);
    for (int r = 0; r < size_of(meeting); ++r)
      mover.copy(parts[i].out + r * bytes, call_of(meeting, r).parts[i].in, bytes);
  }
}

void reduce_work(Mover& mover, const Meeting& meeting, int rank) {
  const std::vector<Part>& parts = call_of(meeting, rank).parts;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].piece > 0)
      sum_ranks(mover, meeting, i, rank * parts[i].piece, parts[i].piece, parts[i].out);
}

void exchange_work(Mover& mover, const Meeting& meeting, int rank) {
  const std::vector<Part>& parts = call_of(meeting, rank).parts;
  const std::size_t size = meeting.members.size(), pieces = parts.size() / 2;
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t peer = i % size, own_piece = i - peer + static_cast<std::size_t>(rank);
    const Part& sent = meeting.members[peer].call.parts[own_piece];
    mover.copy(parts[pieces + i].out, sent.in, bytes_of(sent));
  }
}

/// The input of a small all_reduce, where it stays while the peers' outputs are written.
void stage_work(Mover&, Meeting& meeting, int rank) {
  Meeting::Member& member = meeting.members[static_cast<std::size_t>(rank)];
  const Part& part = member.call.parts[0];
  member.staged.assign(part.in, part.in + bytes_of(part));
}

void sum_staged_work(Mover& mover, const Meeting& meeting, int rank) {
  const Call& own = call_of(meeting, rank);
  const Part& part = own.parts[0];
  std::vector<const void*> inputs;
  for (const Meeting::Member& member : meeting.members) inputs.push_back(member.staged.data());
  mover.sum(sum_args(inputs, part, part.out, part.piece, *own.options));
}

void sum_own_piece_work(Mover& mover, const Meeting& meeting, int rank) {
  const Part& part = call_of(meeting, rank).parts[0];
  const Range own = all_reduce_piece(part.piece, rank, size_of(meeting));
  sum_ranks(mover, meeting, 0, own.begin, own.end - own.begin,
            part.out + own.begin * element_bytes(part.out_dtype));
}

void gather_pieces_work(Mover& mover, const Meeting& meeting, int rank) {
  const Part& part = call_of(meeting, rank).parts[0];
  const std::int64_t element = element_bytes(part.in_dtype);
  for (int r = 0; r < size_of(meeting); ++r) {
    const Range piece = all_reduce_piece(part.piece, r, size_of(meeting));
    mover.copy(part.out + piece.begin * element,
               call_of(meeting, r).parts[0].in + piece.begin * element,
               (piece.end - piece.begin) * element);
  }
}

/// One rank's way through a meeting on its stream: steps of work between points. Also when a launch
/// is refused it comes to every point, since the peers wait for it there.
class Passage {
 public:
  Passage(const std::shared_ptr<ThreadGroup>& group, int rank, Stream& stream, Call call,
          int points)
      : stream_(stream), points_(group->size() > 1 ? points : 0) {
    part_ = std::make_shared<Taking>(group, group->post(rank, std::move(call), points_), rank);
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;
  ~Passage() {
    while (point_ < points_) pass();
    if (part_->group->size() > 1) return;
    // Nobody waits for it, but the world must know of a stream that failed.
    stream_.then([part = part_](const std::exception_ptr& error) {
      if (error) part->group->fail(part->rank, error);
    });
  }

  /// What follows on the stream comes after what all ranks did before.
  void pass() {
    if (point_ == points_) return;
    const auto at = static_cast<std::size_t>(point_);
    const auto arrive = [part = part_.get(), point = point_](const std::exception_ptr& error) {
      part->group->arrive(*part->meeting, point, part->rank, error);
    };
    ++point_;
    if (stream_.kind() != DeviceKind::cuda) {
      stream_.then(arrive);
      stream_.wait(part_->meeting->points[at].event(part_));
      return;
    }
    // The streams' workers meet once they have handed their work on, and hand the waits on too.
    stream_.record(part_->meeting->members[static_cast<std::size_t>(part_->rank)].reached[at]);
    then_handed_on(stream_, arrive);
    stream_.wait(part_->meeting->points[at].event(part_));
    launch_moves(stream_, "meeting", {}, [part = part_, at](Mover& mover) {
      for (const Meeting::Member& member : part->meeting->members) mover.wait(member.reached[at]);
    });
  }

  template <typename Step>
  void work(const char* what, std::span<const Access> touched, Step step) {
    if (point_ < points_) {
      launch_moves(stream_, what, touched, [part = part_.get(), step](Mover& mover) {
        step(mover, *part->meeting, part->rank);
      });
    } else {
      launch_moves(stream_, what, touched,
                   [part = part_, step](Mover& mover) { step(mover, *part->meeting, part->rank); });
    }
  }

 private:
  /// What the tasks share. Those before the last point only refer to it, so that a std::function
  /// holds them without an allocation: the wait for that point, behind them in the stream, owns it.
  struct Taking {
    std::shared_ptr<ThreadGroup> group;
    MeetingPtr meeting;
    int rank;
    Taking(std::shared_ptr<ThreadGroup> g, MeetingPtr m, int r)
        : group(std::move(g)), meeting(std::move(m)), rank(r) {}
  };

  Stream& stream_;
  const int points_;
  int point_ = 0;
  std::shared_ptr<Taking> part_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), exceptions_(std::uncaught_exceptions()) {}
  /// Tells the peers that the rank has left, unless an exception is what ends it: then its cause is
  /// worth more.
  ~ThreadCommunicator() override {
    if (std::uncaught_exceptions() <= exceptions_) group_->leave(rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::string description() const override { return group_->description(); }

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    Passage passage(group_, rank_, stream, gather_call(segments, rank_, size(), name()), 2);
    passage.pass();
    passage.work("all_gather", accesses(segments), gather_work);
  }

  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    Passage passage(group_, rank_, stream, reduce_call(segments, rank_, size(), options, name()),
                    2);
    passage.pass();
    passage.work("reduce_scatter", accesses(segments), reduce_work);
  }

  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    Call call = all_reduce_call(data, options, name());
    const Access touched[] = {reads(data), writes(data)};
    const std::span<const Access> all(touched);
    const bool small = size() > 1 && bytes_of(call.parts[0]) <= kSmallAllReduce &&
                       stream.kind() != DeviceKind::cuda;
    Passage passage(group_, rank_, stream, std::move(call), small ? 1 : 3);
    if (small) {
      passage.work("all_reduce", all.first(1), stage_work);
      passage.pass();
      passage.work("all_reduce", all.last(1), sum_staged_work);
    } else {
      passage.pass();
      passage.work("all_reduce", all, sum_own_piece_work);
      passage.pass();
      if (size() > 1) passage.work("all_reduce", all, gather_pieces_work);
    }
  }

  void broadcast(Stream& stream, const View& data, int root) override {
    Passage passage(group_, rank_, stream, broadcast_call(data, root, size(), name()), 2);
    passage.pass();
    const Access touched = rank_ == root ? reads(data) : writes(data);
    passage.work("broadcast", {&touched, 1}, [](Mover& mover, Meeting& meeting, int rank) {
      const Call& own = call_of(meeting, rank);
      mover.copy(own.parts[0].out, call_of(meeting, own.root).parts[0].in, bytes_of(own.parts[0]));
    });
  }

  void all_to_all(Stream& stream, std::span<const ConstView> to,
                  std::span<const View> from) override {
    Passage passage(group_, rank_, stream, all_to_all_call(to, from, size(), name()), 2);
    passage.pass();
    passage.work("all_to_all", accesses(to, from), exchange_work);
  }

  void barrier(Stream& stream) override {
    Passage(group_, rank_, stream, Call{.operation = "barrier"}, 1);
  }

  void send(Stream& stream, const ConstView& data, int peer) override {
    check_peer("send", peer, rank_, size(), name());
    const Part part{data.data(), nullptr, elements_of(data), data.dtype(), data.dtype()};
    const auto message = group_->post_message(rank_, peer, true, part);
    const Access touched = reads(data);
    launch_moves(stream, "send", {&touched, 1},
                 [group = group_, message, part, rank = rank_, peer](Mover& mover) {
                   mover.copy(group->place(*message, rank, peer), part.in, bytes_of(part));
                 });
    stream.then([group = group_, message, rank = rank_](const std::exception_ptr& error) {
      group->sent(*message, rank, error);
    });
  }

  void recv(Stream& stream, const View& data, int peer) override {
    check_peer("recv", peer, rank_, size(), name());
    const Part part{nullptr, data.data(), elements_of(data), data.dtype(), data.dtype()};
    const auto message = group_->post_message(peer, rank_, false, part);
    stream.then([group = group_, message, rank = rank_](const std::exception_ptr& error) {
      group->wanted(*message, rank, error);
    });
    stream.wait(message->arrival.event(message));
    const Access touched = writes(data);
    launch_moves(stream, "recv", {&touched, 1},
                 [group = group_, message, part, rank = rank_, peer](Mover& mover) {
                   if (message->direct) return;
                   mover.copy(part.out, message->bytes.data(), bytes_of(part));
                   mover.settle();
                   group->taken(*message, peer, rank);
                 });
  }

  std::vector<std::string> exchange(const std::string& value) override {
    return group_->exchange(rank_, Call{.operation = "exchange (host)", .value = value});
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const std::vector<std::string> all = group_->exchange(
        rank_, Call{.operation = "split (host)", .value = split_value(color, key)});
    const SplitResult result = split_members(all, rank_);
    return std::make_unique<ThreadCommunicator>(group_->child(splits_++, result.members),
                                                result.rank);
  }

  void fail(const std::exception_ptr& cause) noexcept override { group_->fail(rank_, cause); }
  void check() override { group_->check(rank_); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    group_->world().set_timeout(timeout);
  }

 private:
  const std::string& name() const { return group_->description(); }

  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
  const int exceptions_;
  std::int64_t splits_ = 0;
};

std::vector<std::unique_ptr<Communicator>> make_communicators(
    const std::shared_ptr<CommWorld>& world, int size) {
  std::vector<int> members(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) members[static_cast<std::size_t>(i)] = i;
  const auto group = std::make_shared<ThreadGroup>(world, std::move(members));
  std::vector<std::unique_ptr<Communicator>> all;
  for (int i = 0; i < size; ++i) all.push_back(std::make_unique<ThreadCommunicator>(group, i));
  return all;
}

std::shared_ptr<CommWorld> make_world(int size, const ThreadCommOptions& options) {
  if (size < 1) throw_invalid(concat("a world needs at least one rank, found size ", size));
  return std::make_shared<CommWorld>(size, options.timeout);
}

}  // namespace
}  // namespace detail

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, const ThreadCommOptions& options) {
  return detail::make_communicators(detail::make_world(size, options), size);
}

std::unique_ptr<Communicator> make_self_communicator() {
  return std::move(make_thread_communicators(1).front());
}

void run_ranks(int size, const std::function<void(Communicator&)>& body,
               const ThreadCommOptions& options) {
  const auto world = detail::make_world(size, options);
  auto communicators = detail::make_communicators(world, size);
  std::vector<std::thread> threads;
  const auto run = [&body](std::unique_ptr<Communicator> communicator) {
    set_log_rank(communicator->rank());
    try {
      body(*communicator);
    } catch (...) {
      communicator->fail(std::current_exception());
    }
    // The communicator ends here: who still waits for this rank waits in vain, and is told so.
  };
  try {
    for (auto& communicator : communicators) threads.emplace_back(run, std::move(communicator));
  } catch (...) {  // the system refused a thread: end those that run
    world->fail(static_cast<int>(threads.size()), std::current_exception());
  }
  for (std::thread& thread : threads) thread.join();
  if (world->failure().happened()) std::rethrow_exception(world->failure().cause());
}

}  // namespace zero3d
