#include "zero3d/parallel/comm/thread_group.h"

#include <exception>

#include "zero3d/core/text.h"

namespace zero3d::detail {
namespace {

std::string describe(const Call& call) {
  std::string text = call.operation;
  if (call.root >= 0) text += concat(" from root ", call.root);
  text += concat(" of ", call.parts.size(), " segment(s)");
  return text;
}

std::string describe(const Call& call, std::size_t part) {
  return concat(call.operation, " segment ", part, " of ", call.parts[part].piece, " x ",
                name_of(call.parts[part].in_dtype));
}

}  // namespace

std::vector<std::string> Exchange::run(int rank, const std::string& value,
                                       const std::string& operation) {
  values_[static_cast<std::size_t>(rank)] = &value;
  rendezvous_.enter(rank, operation);
  std::vector<std::string> all;
  std::exception_ptr error;
  try {
    all.reserve(values_.size());
    for (const std::string* v : values_) all.push_back(*v);
  } catch (...) {
    error = std::current_exception();
  }
  rendezvous_.meet(rank);
  if (error) std::rethrow_exception(error);
  return all;
}

ThreadGroup::ThreadGroup(std::shared_ptr<CommWorld> world, std::vector<int> members)
    : world_(std::move(world)),
      members_(std::move(members)),
      description_(describe_ranks(members_)),
      stream_(*world_, members_),
      host_(*world_, members_),
      task_(*world_, members_),
      calls_(members_.size()) {
  for (const int source : members_)
    for (const int target : members_)
      mailboxes_.push_back(std::make_unique<Mailbox>(*world_, source, target));
}

std::string ThreadGroup::mismatch() const {
  const Call& first = calls_[0];
  for (std::size_t r = 1; r < calls_.size(); ++r) {
    const Call& other = calls_[r];
    const auto say = [&](const std::string& a, const std::string& b) {
      return concat("rank ", members_[0], " calls ", a, " but rank ", members_[r], " calls ", b);
    };
    if (std::string_view(first.operation) != other.operation || first.root != other.root ||
        first.parts.size() != other.parts.size())
      return say(describe(first), describe(other));
    for (std::size_t i = 0; i < first.parts.size(); ++i)
      if (first.parts[i].piece != other.parts[i].piece ||
          first.parts[i].in_dtype != other.parts[i].in_dtype)
        return say(describe(first, i), describe(other, i));
  }
  return {};
}

void ThreadGroup::run(int rank, const Call& call, const std::function<void()>& work) {
  const std::string operation = concat(call.operation, " on ", description_);
  calls_[static_cast<std::size_t>(rank)] = call;
  stream_.enter(rank, operation);
  // From here on peers read this rank's memory: whatever happens, leave only together.
  std::string wrong;
  std::exception_ptr error;
  try {
    wrong = mismatch();
    if (wrong.empty()) work();
  } catch (...) {
    error = std::current_exception();
  }
  stream_.meet(rank);
  if (!wrong.empty()) {
    world_->abort(world_rank(rank), wrong);
    throw CommError(world_rank(rank), call.operation, concat(operation, ": ", wrong));
  }
  if (error) std::rethrow_exception(error);
}

void ThreadGroup::leave(int rank) noexcept {
  stream_.leave(rank);
  host_.leave(rank);
  task_.leave(rank);
  for (int target = 0; target < size(); ++target) mailbox(rank, target).leave();
}

std::shared_ptr<ThreadGroup> ThreadGroup::child(std::int64_t sequence, std::vector<int> members) {
  const std::lock_guard lock(children_mutex_);
  const auto key = std::pair(sequence, members.front());
  Child& child = children_[key];
  if (!child.group) {
    child.to_come = members.size();
    for (int& member : members) member = world_rank(member);
    child.group = std::make_shared<ThreadGroup>(world_, std::move(members));
  }
  std::shared_ptr<ThreadGroup> group = child.group;
  if (--child.to_come == 0) children_.erase(key);
  return group;
}

}  // namespace zero3d::detail
