// A group of ranks that are threads of one process: the meeting places its members share, and the
// work each rank does once all have met. Internal to the thread communicator.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zero3d/parallel/comm/comm_world.h"
#include "zero3d/parallel/comm/mailbox.h"
#include "zero3d/parallel/comm/segments.h"

namespace zero3d::detail {

/// What one rank brings to a collective.
struct Call {
  const char* operation = "";
  int root = -1;
  std::span<const Part> parts;
};

/// Strings of all ranks in rank order.
class Exchange {
 public:
  Exchange(CommWorld& world, const std::vector<int>& members)
      : rendezvous_(world, members), values_(members.size()) {}
  std::vector<std::string> run(int rank, const std::string& value, const std::string& operation);
  void leave(int rank) noexcept { rendezvous_.leave(rank); }

 private:
  Rendezvous rendezvous_;
  std::vector<const std::string*> values_;
};

class ThreadGroup {
 public:
  ThreadGroup(std::shared_ptr<CommWorld> world, std::vector<int> members);

  CommWorld& world() const { return *world_; }
  const std::vector<int>& members() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  const std::string& description() const { return description_; }

  /// Meets the other ranks' calls, checks that they are the same operation on the same sizes, runs
  /// `work` (may read any rank's parts through calls(), and meet()), and leaves only when all have
  /// finished. Throws CommError.
  void run(int rank, const Call& call, const std::function<void()>& work);
  /// For a `work` of two phases: waits until all ranks are here.
  void meet(int rank) noexcept { stream_.meet(rank); }
  const Call& call(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  Mailbox& mailbox(int source, int target) {
    return *mailboxes_[static_cast<std::size_t>(source * size() + target)];
  }
  Exchange& host_exchange() { return host_; }
  Exchange& task_exchange() { return task_; }

  /// Rank `rank` does nothing more in this group.
  void leave(int rank) noexcept;

  /// The group of `members` (indices into this one) made by the `sequence`th split; every member
  /// asks once.
  std::shared_ptr<ThreadGroup> child(std::int64_t sequence, std::vector<int> members);

 private:
  /// "" when all ranks' calls agree, else the first two that do not.
  std::string mismatch() const;

  const std::shared_ptr<CommWorld> world_;
  const std::vector<int> members_;  ///< World ranks.
  const std::string description_;
  Rendezvous stream_;
  Exchange host_;
  Exchange task_;
  std::vector<Call> calls_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;

  struct Child {
    std::shared_ptr<ThreadGroup> group;
    std::size_t to_come = 0;
  };
  std::mutex children_mutex_;
  std::map<std::pair<std::int64_t, int>, Child> children_;  ///< By sequence and first member.
};

/// One rank's share of a group, held by its communicator and by each task it enqueued. The last one
/// to go tells the peers that the rank has left, unless an exception is what ends it: then its
/// cause is worth more.
class Membership {
 public:
  Membership(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), exceptions_(std::uncaught_exceptions()) {}
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  ~Membership() {
    if (std::uncaught_exceptions() <= exceptions_) group_->leave(rank_);
  }
  ThreadGroup& group() const { return *group_; }
  int rank() const { return rank_; }

 private:
  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
  const int exceptions_;
};

}  // namespace zero3d::detail
