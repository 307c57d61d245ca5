// Collectives over MPI messages: every reduction exchanges pieces and sums them in rank order.
#include "zero3d/parallel/comm/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <sstream>
#include <utility>

#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/mpi_group.h"
#include "zero3d/parallel/comm/ticket.h"

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
    launch(stream, "all_gather", accesses(segments),
           [parts = gather_parts(segments, rank(), size(), description())](MpiGroup& group) {
             group.all_gather(parts);
           });
  }

  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    launch(stream, "reduce_scatter", accesses(segments),
           [parts = reduce_parts(segments, rank(), size(), options, description()),
            options](MpiGroup& group) { group.reduce_scatter(parts, options); });
  }

  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    launch(stream, "all_reduce", {reads(data), writes(data)},
           [part = all_reduce_part(data, options, description()), options](MpiGroup& group) {
             group.all_reduce(part, options);
           });
  }

  void broadcast(Stream& stream, const View& data, int root) override {
    check_root(root, size(), description());
    launch(stream, "broadcast", {rank() == root ? reads(data) : writes(data)},
           [data, root](MpiGroup& group) { group.broadcast(data, root); });
  }

  void send(Stream& stream, const ConstView& data, int peer) override {
    check_peer("send", peer, rank(), size(), description());
    launch(stream, concat("send to rank ", group_->world_rank(peer)), {reads(data)},
           [data, peer](MpiGroup& group) { group.send(data, peer); });
  }

  void recv(Stream& stream, const View& data, int peer) override {
    check_peer("recv", peer, rank(), size(), description());
    launch(stream, concat("recv from rank ", group_->world_rank(peer)), {writes(data)},
           [data, peer](MpiGroup& group) { group.recv(data, peer); });
  }

  void barrier(Stream& stream) override {
    launch(stream, "barrier", {}, [](MpiGroup& group) { group.barrier(); });
  }

  std::vector<std::string> exchange(const std::string& value) override {
    return group_->exchange(value, MpiChannel::host, "exchange");
  }

  std::vector<std::string> exchange_in_task(const std::string& value) override {
    return group_->exchange(value, MpiChannel::task, "comparison");
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<MpiCommunicator>(group_->split(color, key));
  }

  void abort(const std::string& reason) noexcept override { group_->world().abort(reason); }

 private:
  void launch(Stream& stream, std::string operation, std::vector<Access> touched,
              std::function<void(MpiGroup&)> work) {
    group_->world().check(operation);
    auto ticket = std::make_shared<Ticket>(
        operation, stream.name(),
        [group = group_](const std::string& reason) { group->world().abort(reason); });
    stream.launch(std::move(operation), touched,
                  [group = group_, ticket = std::move(ticket), work = std::move(work)] {
                    ticket->start();
                    work(*group);
                  });
  }

  const std::shared_ptr<MpiGroup> group_;
};

}  // namespace
}  // namespace detail

bool built_with_mpi() { return true; }

MpiSession::MpiSession() : exceptions_(std::uncaught_exceptions()) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) throw_invalid("MPI is initialised already; a process has one MpiSession");
  int provided = 0;
  detail::check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), 0,
                    "MPI_Init_thread");
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
  auto world = std::make_shared<detail::MpiWorld>(options.timeout, options.log_aborts);
  std::unique_ptr<Communicator> communicator =
      std::make_unique<detail::MpiCommunicator>(detail::MpiGroup::of_world(std::move(world)));
  return options.check ? make_checked(std::move(communicator)) : std::move(communicator);
}

void run_mpi_rank(const std::function<void(Communicator&)>& body, const MpiCommOptions& options) {
  const auto world = make_mpi_world(options);
  set_log_rank(world->rank());
  try {
    body(*world);
  } catch (const CommAborted& error) {
    world->abort(error.what());
    throw;
  } catch (const std::exception& error) {
    world->abort(error.what());
    throw;
  }
}

}  // namespace zero3d
