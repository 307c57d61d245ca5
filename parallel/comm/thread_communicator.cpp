// One rank's face of a ThreadGroup: each operation is one launch whose task meets the others'.
#include "zero3d/parallel/comm/thread_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/device/parallel.h"
#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/parallel/comm/reduce_sum.h"
#include "zero3d/parallel/comm/thread_group.h"
#include "zero3d/parallel/comm/ticket.h"

namespace zero3d {
namespace detail {
namespace {

constexpr std::int64_t kCopyGrain = 1 << 20;  // bytes; an L2's worth
/// An all_reduce up to this many bytes is summed whole by every rank: one meeting less beats
/// sharing the work.
constexpr std::int64_t kSmallAllReduce = 16384;

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes == 0 || to == from) return;
  const auto body = [=](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  };
  if (bytes <= kCopyGrain) return body(0, bytes);
  parallel_for(bytes, kCopyGrain, body);
}

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// out[0, count) = the sum of all ranks' part `part` at elements [begin, begin + count).
void sum_ranks(const ThreadGroup& group, std::size_t part, std::int64_t begin, std::int64_t count,
               std::byte* out, DType out_dtype, const ReduceOptions& options) {
  const DType in_dtype = group.call(0).parts[part].in_dtype;
  std::vector<const void*> inputs;
  for (int r = 0; r < group.size(); ++r)
    inputs.push_back(group.call(r).parts[part].in + begin * element_bytes(in_dtype));
  reduce_sum(inputs, in_dtype, out, out_dtype, count, options);
}

void gather_work(const ThreadGroup& group, int rank) {
  const Call& own = group.call(rank);
  for (std::size_t i = 0; i < own.parts.size(); ++i) {
    const std::int64_t bytes = own.parts[i].piece * element_bytes(own.parts[i].in_dtype);
    for (int r = 0; r < group.size(); ++r)
      copy_bytes(own.parts[i].out + r * bytes, group.call(r).parts[i].in, bytes);
  }
}

void reduce_work(const ThreadGroup& group, int rank, const ReduceOptions& options) {
  const Call& own = group.call(rank);
  for (std::size_t i = 0; i < own.parts.size(); ++i) {
    const Part& part = own.parts[i];
    if (part.piece > 0)
      sum_ranks(group, i, rank * part.piece, part.piece, part.out, part.out_dtype, options);
  }
}

void all_reduce_work(ThreadGroup& group, int rank, const ReduceOptions& options) {
  const Part& part = group.call(rank).parts[0];
  const std::int64_t element = element_bytes(part.in_dtype);
  if (part.piece * element <= kSmallAllReduce) {
    std::byte sums[kSmallAllReduce];
    sum_ranks(group, 0, 0, part.piece, sums, part.out_dtype, options);
    group.meet(rank);
    if (part.piece > 0) std::memcpy(part.out, sums, static_cast<std::size_t>(part.piece * element));
    return;
  }
  const Range own = all_reduce_piece(part.piece, rank, group.size());
  sum_ranks(group, 0, own.begin, own.end - own.begin, part.out + own.begin * element,
            part.out_dtype, options);
  group.meet(rank);
  for (int r = 0; r < group.size(); ++r) {
    const Range piece = all_reduce_piece(part.piece, r, group.size());
    copy_bytes(part.out + piece.begin * element, group.call(r).parts[0].in + piece.begin * element,
               (piece.end - piece.begin) * element);
  }
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(group.get()),
        rank_(rank),
        membership_(std::make_shared<Membership>(std::move(group), rank)) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::string description() const override { return group_->description(); }

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    collective(stream, "all_gather", -1, gather_parts(segments, rank_, size(), description()),
               accesses(segments), [](ThreadGroup& group, int rank) { gather_work(group, rank); });
  }

  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    collective(stream, "reduce_scatter", -1,
               reduce_parts(segments, rank_, size(), options, description()), accesses(segments),
               [options](ThreadGroup& group, int rank) { reduce_work(group, rank, options); });
  }

  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    collective(stream, "all_reduce", -1, {all_reduce_part(data, options, description())},
               {reads(data), writes(data)},
               [options](ThreadGroup& group, int rank) { all_reduce_work(group, rank, options); });
  }

  void broadcast(Stream& stream, const View& data, int root) override {
    check_root(root, size(), description());
    const Part part{data.data(), data.data(), data.defined() ? data.numel() : 0, data.dtype(),
                    data.dtype()};
    collective(stream, "broadcast", root, {part}, {rank_ == root ? reads(data) : writes(data)},
               [root](ThreadGroup& group, int rank) {
                 const Part& own = group.call(rank).parts[0];
                 copy_bytes(own.out, group.call(root).parts[0].in,
                            own.piece * element_bytes(own.in_dtype));
               });
  }

  void barrier(Stream& stream) override {
    collective(stream, "barrier", -1, {}, {}, [](ThreadGroup&, int) {});
  }

  void send(Stream& stream, const ConstView& data, int peer) override {
    check_peer("send", peer, rank_, size(), description());
    launch(stream, concat("send to rank ", group_->world_rank(peer)), {reads(data)},
           [data, peer](ThreadGroup& group, int rank) { group.mailbox(rank, peer).put(data); });
  }

  void recv(Stream& stream, const View& data, int peer) override {
    check_peer("recv", peer, rank_, size(), description());
    launch(stream, concat("recv from rank ", group_->world_rank(peer)), {writes(data)},
           [data, peer](ThreadGroup& group, int rank) { group.mailbox(peer, rank).take(data); });
  }

  std::vector<std::string> exchange(const std::string& value) override {
    return group_->host_exchange().run(rank_, value, concat("exchange on ", description()));
  }

  std::vector<std::string> exchange_in_task(const std::string& value) override {
    return group_->task_exchange().run(rank_, value, concat("comparison on ", description()));
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const std::vector<std::string> all = group_->host_exchange().run(
        rank_, split_value(color, key), concat("split of ", description()));
    const SplitResult result = split_members(all, rank_);
    return std::make_unique<ThreadCommunicator>(group_->child(splits_++, result.members),
                                                result.rank);
  }

  void abort(const std::string& reason) noexcept override {
    group_->world().abort(group_->world_rank(rank_), reason);
  }

 private:
  void launch(Stream& stream, std::string operation, std::vector<Access> touched,
              std::function<void(ThreadGroup&, int)> work) {
    group_->world().check(operation);
    // The task shares the membership: it may outlive the communicator.
    auto ticket = std::make_shared<Ticket>(
        operation, stream.name(), [member = membership_](const std::string& reason) {
          member->group().world().abort(member->group().world_rank(member->rank()), reason);
        });
    stream.launch(std::move(operation), touched,
                  [member = membership_, ticket = std::move(ticket), work = std::move(work)] {
                    ticket->start();
                    work(member->group(), member->rank());
                  });
  }

  void collective(Stream& stream, const char* operation, int root, std::vector<Part> parts,
                  std::vector<Access> touched, std::function<void(ThreadGroup&, int)> work) {
    launch(stream, operation, std::move(touched),
           [operation, root, parts = std::move(parts), work = std::move(work)](ThreadGroup& group,
                                                                               int rank) {
             group.run(rank, Call{operation, root, parts}, [&] { work(group, rank); });
           });
  }

  ThreadGroup* const group_;  ///< Kept by membership_.
  const int rank_;
  const std::shared_ptr<Membership> membership_;
  std::int64_t splits_ = 0;
};

std::vector<std::unique_ptr<Communicator>> make_plain(int size, std::chrono::milliseconds timeout) {
  if (size < 1) throw_invalid(concat("a world needs at least one rank, found size ", size));
  std::vector<int> members(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) members[static_cast<std::size_t>(i)] = i;
  const auto group =
      std::make_shared<ThreadGroup>(std::make_shared<CommWorld>(timeout), std::move(members));
  std::vector<std::unique_ptr<Communicator>> all;
  for (int i = 0; i < size; ++i) all.push_back(std::make_unique<ThreadCommunicator>(group, i));
  return all;
}

}  // namespace
}  // namespace detail

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, const ThreadCommOptions& options) {
  auto all = detail::make_plain(size, options.timeout);
  if (options.check)
    for (auto& communicator : all) communicator = make_checked(std::move(communicator));
  return all;
}

std::unique_ptr<Communicator> make_self_communicator() {
  return std::move(make_thread_communicators(1).front());
}

}  // namespace zero3d
