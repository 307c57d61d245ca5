// Collectives over MPI messages: every reduction exchanges pieces and sums them in rank order.
#include "zero3d/parallel/comm/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/device/event_state.h"
#include "zero3d/parallel/comm/mpi_group.h"

namespace zero3d {
namespace detail {
namespace {

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(std::shared_ptr<MpiGroup> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string description() const override { return group_->description(); }

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    collective(stream, gather_call(segments, rank(), size(), description()), accesses(segments),
               [](MpiGroup& group, const Call& call) { group.all_gather(call.parts); });
  }

  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    collective(
        stream, reduce_call(segments, rank(), size(), options, description()), accesses(segments),
        [](MpiGroup& group, const Call& call) { group.reduce_scatter(call.parts, *call.options); });
  }

  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    collective(
        stream, all_reduce_call(data, options, description()), {reads(data), writes(data)},
        [](MpiGroup& group, const Call& call) { group.all_reduce(call.parts[0], *call.options); });
  }

  void broadcast(Stream& stream, const View& data, int root) override {
    collective(stream, broadcast_call(data, root, size(), description()),
               {rank() == root ? reads(data) : writes(data)},
               [](MpiGroup& group, const Call& call) {
                 const Part& part = call.parts[0];
                 group.broadcast(View(part.out, part.in_dtype, Shape{part.piece}), call.root);
               });
  }

  void all_to_all(Stream& stream, std::span<const ConstView> to,
                  std::span<const View> from) override {
    collective(stream, all_to_all_call(to, from, size(), description()), accesses(to, from),
               [](MpiGroup& group, const Call& call) { group.all_to_all(call.parts); });
  }

  void send(Stream& stream, const ConstView& data, int peer) override {
    check_peer("send", peer, rank(), size(), description());
    launch(stream, "send", {reads(data)},
           [data, peer](MpiGroup& group) { group.send(data, peer); });
  }

  void recv(Stream& stream, const View& data, int peer) override {
    check_peer("recv", peer, rank(), size(), description());
    launch(stream, "recv", {writes(data)},
           [data, peer](MpiGroup& group) { group.recv(data, peer); });
  }

  void barrier(Stream& stream) override {
    collective(stream, Call{.operation = "barrier"}, {},
               [](MpiGroup& group, const Call&) { group.barrier(); });
  }

  std::vector<std::string> exchange(const std::string& value) override {
    compare_hosts("exchange (host)");
    return group_->exchange(value, MpiChannel::host, "exchange");
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    compare_hosts("split (host)");
    return std::make_unique<MpiCommunicator>(group_->split(color, key));
  }

  void fail(const std::exception_ptr& cause) noexcept override { group_->world().fail(cause); }
  void check() override { group_->world().check(); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    group_->world().set_timeout(timeout);
  }

 private:
  /// Agreement and progress both take place in the stream's task: MPI needs a thread for them.
  void collective(Stream& stream, Call call, const std::vector<Access>& touched,
                  void (*work)(MpiGroup&, const Call&)) {
    const char* operation = call.operation;
    const std::int64_t sequence = sequence_++;
    launch(stream, operation, touched, [call = std::move(call), sequence, work](MpiGroup& group) {
      if (group.world().compares()) group.compare(describe(call, sequence), MpiChannel::task);
      if (group.world().compares() && call.of_pairs) group.compare_pairs(call.value);
      work(group, call);
    });
  }

  void launch(Stream& stream, const char* operation, const std::vector<Access>& touched,
              std::function<void(MpiGroup&)> work) {
    group_->world().check();
    stream.launch(operation, touched, [group = group_, work = std::move(work)] { work(*group); });
    stream.then([group = group_](const std::exception_ptr& error) {
      if (error) group->world().fail(error);
    });
  }

  void compare_hosts(const char* operation) {
    const Call call{.operation = operation};
    if (group_->world().compares())
      group_->compare(describe(call, host_sequence_++), MpiChannel::host);
  }

  std::int64_t sequence_ = 0;
  std::int64_t host_sequence_ = 0;
  const std::shared_ptr<MpiGroup> group_;
};

}  // namespace
}  // namespace detail

bool built_with_mpi() { return true; }

namespace {

/// Ends the process unless it is destroyed within the limit.
class StartLimit {
 public:
  explicit StartLimit(std::chrono::milliseconds limit)
      : watch_([this, limit] {
          std::unique_lock lock(mutex_);
          if (over_.wait_until(lock, std::chrono::system_clock::now() + limit,
                               [this] { return started_; }))
            return;
          std::fprintf(
              stderr,
              "zero3d: MPI has not started within %lld ms (MPI_Init): a process of the run "
              "does not answer, or never began\n",
              static_cast<long long>(limit.count()));
          std::_Exit(1);
        }) {}
  StartLimit(const StartLimit&) = delete;
  StartLimit& operator=(const StartLimit&) = delete;
  ~StartLimit() {
    {
      const std::lock_guard lock(mutex_);
      started_ = true;
    }
    over_.notify_all();
    watch_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool started_ = false;
  std::thread watch_;
};

}  // namespace

MpiSession::MpiSession(std::chrono::milliseconds timeout)
    : exceptions_(std::uncaught_exceptions()) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) throw_invalid("MPI is initialised already; a process has one MpiSession");
  int provided = 0;
  {
    const StartLimit limit(timeout);
    detail::check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), 0,
                      "MPI_Init_thread");
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw_invalid("this MPI does not allow calls from many threads (MPI_THREAD_MULTIPLE)");
  }
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  } else {
    MPI_Finalize();
  }
}

std::unique_ptr<Communicator> make_mpi_world(const MpiCommOptions& options) {
  return std::make_unique<detail::MpiCommunicator>(detail::MpiGroup::of_world(
      std::make_shared<detail::MpiWorld>(options.timeout, options.log_failures, options.check)));
}

void run_mpi_rank(const std::function<void(Communicator&)>& body, const MpiCommOptions& options) {
  const auto world = make_mpi_world(options);
  set_log_rank(world->rank());
  fail_together(*world, [&] { body(*world); });
}

}  // namespace zero3d
