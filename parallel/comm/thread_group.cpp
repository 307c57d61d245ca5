#include "zero3d/parallel/comm/thread_group.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

/// Stands behind a group's events. To wait for peers is no lack of progress: the world's own limit
/// ends it.
class GroupRecorder final : public Recorder {
 public:
  explicit GroupRecorder(std::string group) : group_(std::move(group)) {}
  std::string status() const override { return "the meetings of " + group_; }
  std::uint64_t progress() const override { return ++asked_; }
  bool is_meeting() const override { return true; }

 private:
  const std::string group_;
  mutable std::atomic<std::uint64_t> asked_{0};
};

std::string ended(int waiting, const std::string& what) {
  return concat("it ended while rank ", waiting, " waited for ", what);
}

}  // namespace

ThreadGroup::ThreadGroup(std::shared_ptr<CommWorld> world, std::vector<int> members)
    : world_(std::move(world)),
      members_(std::move(members)),
      description_(describe_ranks(members_)),
      recorder_(std::make_shared<GroupRecorder>(description_)),
      left_(members_.size()) {
  streams_.next.resize(members_.size());
  hosts_.next.resize(members_.size());
  world_->add(this);
}

ThreadGroup::~ThreadGroup() { world_->remove(this); }

void ThreadGroup::start(Point& point) const {
  if (!std::exchange(point.used, true)) point.passed.set_recorder(recorder_);
}

bool ThreadGroup::finish(Point& point) noexcept {
  if (!point.used || point.over.exchange(true)) return false;
  const FirstFailure& failure = world_->failure();
  point.passed.complete(failure.happened() ? failure.echo() : nullptr);
  return true;
}

ThreadGroup::Trouble ThreadGroup::trouble(const Meeting& meeting, int rank) const {
  const auto& members = meeting.members;
  if (meeting.posts < members.size()) {
    for (std::size_t r = 0; r < members.size(); ++r)
      if (left_[r] && !members[r].posted)
        return {members_[r],
                ended(world_rank(rank),
                      concat("it in ", members[index(rank)].call.operation, " on ", description_))};
    return {};
  }
  if (std::all_of(members.begin(), members.end(),
                  [&](const auto& member) { return agree(member.call, members[0].call); })) {
    if (!members[0].call.of_pairs) return {};
    std::vector<std::string> values;
    for (const auto& member : members) values.push_back(member.call.value);
    const std::string wrong = pair_mismatch(values);
    if (wrong.empty()) return {};
    return {world_rank(rank), concat(description_, ": ", wrong)};
  }
  std::vector<std::string> lines;
  for (const auto& member : members) lines.push_back(describe(member.call, meeting.sequence));
  return {world_rank(rank), concat(description_, ": ", mismatch(lines))};
}

void ThreadGroup::check(const Trouble& trouble, int rank, const char* operation) const {
  if (trouble.rank < 0) return;
  world_->fail(trouble.rank,
               std::make_exception_ptr(CommError(trouble.rank, operation, trouble.message)));
  check(rank);
}

std::shared_ptr<Meeting> ThreadGroup::post(Lane& lane, int rank, Call call, int points) {
  const char* operation = call.operation;
  std::shared_ptr<Meeting> meeting;
  Trouble found;
  {
    const std::lock_guard lock(mutex_);
    check(rank);  // here: who fails the world later finds this meeting
    while (!lane.open.empty() && lane.open.front()->points[0].over) lane.open.pop_front();
    const std::int64_t sequence = lane.next[index(rank)]++;
    if (lane.open.empty() || lane.open.back()->sequence < sequence)
      lane.open.push_back(std::make_shared<Meeting>(members_.size(), sequence));
    meeting = lane.open[static_cast<std::size_t>(sequence - lane.open.front()->sequence)];
    for (int i = 0; i < points; ++i) start(meeting->points[index(i)]);
    meeting->members[index(rank)].call = std::move(call);
    meeting->members[index(rank)].posted = true;
    ++meeting->posts;
    found = trouble(*meeting, rank);
  }
  check(found, rank, operation);
  return meeting;
}

std::shared_ptr<Meeting> ThreadGroup::post(int rank, Call call, int points) {
  if (size() > 1) return post(streams_, rank, std::move(call), points);
  check(rank);
  const auto meeting = std::make_shared<Meeting>(1, 0);
  meeting->members[0].call = std::move(call);
  return meeting;
}

void ThreadGroup::arrive(Meeting& meeting, int point, int rank,
                         const std::exception_ptr& error) noexcept {
  if (error) fail(rank, error);
  Point& at = meeting.points[index(point)];
  if (point == 0) meeting.members[index(rank)].arrived = true;
  const int before = at.arrived.fetch_add(1);
  if (before + 1 == size()) {
    finish(at);
  } else if (before == 0) {
    at.begin_wait(rank);
  }
}

std::vector<std::string> ThreadGroup::exchange(int rank, Call call) {
  const auto meeting = post(hosts_, rank, std::move(call), 1);
  arrive(*meeting, 0, rank, nullptr);
  const EventState& passed = meeting->points[0].passed;
  passed.await();
  if (passed.error()) check(rank);
  std::vector<std::string> all;
  for (const auto& member : meeting->members) all.push_back(member.call.value);
  return all;
}

std::shared_ptr<Message> ThreadGroup::post_message(int source, int target, bool sends,
                                                   const Part& part) {
  const int rank = sends ? source : target;
  const char* operation = sends ? "send" : "recv";
  std::shared_ptr<Message> message;
  Trouble found;
  {
    const std::lock_guard lock(mutex_);
    check(rank);
    Channel& channel = channels_[{source, target}];
    while (channel.sends > 0 && channel.receives > 0 && channel.open.front()->arrival.over) {
      channel.open.pop_front();
      --channel.sends;
      --channel.receives;
    }
    const std::size_t at = (sends ? channel.sends : channel.receives)++;
    if (at == channel.open.size()) {
      channel.open.push_back(std::make_shared<Message>());
      start(channel.open.back()->arrival);
    }
    message = channel.open[at];
    (sends ? message->sent : message->expected) = part;
    if (message->sent && message->expected) {
      const std::string wrong =
          mismatch(world_rank(source), *message->sent, world_rank(target), *message->expected);
      if (!wrong.empty()) found = {world_rank(rank), concat(operation, ": ", wrong)};
    } else if (!sends && left_[index(source)]) {
      found = {world_rank(source), ended(world_rank(target), "its message")};
    }
  }
  check(found, rank, operation);
  return message;
}

std::byte* ThreadGroup::place(Message& message, int source, int target) {
  const Part part = *message.sent;
  {
    const std::lock_guard lock(mutex_);
    message.direct = message.wanted && !message.arrival.over;
    if (message.direct) return message.expected->out;
    message.bytes = std::move(channels_[{source, target}].spare);
  }
  message.bytes.resize(static_cast<std::size_t>(part.piece) * size_of(part.in_dtype));
  return message.bytes.data();
}

void ThreadGroup::sent(Message& message, int source, const std::exception_ptr& error) noexcept {
  if (error) fail(source, error);
  const std::lock_guard lock(mutex_);
  finish(message.arrival);
}

void ThreadGroup::wanted(Message& message, int target, const std::exception_ptr& error) noexcept {
  if (error) return fail(target, error);
  const std::lock_guard lock(mutex_);
  message.wanted = true;
  message.arrival.begin_wait(target);
}

void ThreadGroup::taken(Message& message, int source, int target) {
  const std::lock_guard lock(mutex_);
  channels_[{source, target}].spare = std::move(message.bytes);
}

void ThreadGroup::leave(int rank) {
  Trouble found;
  const auto look = [&](const Lane& lane) {
    for (const auto& meeting : lane.open) {
      const auto& members = meeting->members;
      const auto waiting = std::find_if(members.begin(), members.end(),
                                        [](const auto& member) { return member.posted; });
      if (found.rank < 0 && !meeting->points[0].over)
        found = trouble(*meeting, static_cast<int>(waiting - members.begin()));
    }
  };
  {
    const std::lock_guard lock(mutex_);
    left_[index(rank)] = true;
    look(streams_);
    look(hosts_);
    for (const auto& [ends, channel] : channels_)
      if (ends.first == rank && channel.receives > channel.sends)
        found = {world_rank(rank), ended(world_rank(ends.second), "its message")};
  }
  if (found.rank >= 0)
    world_->fail(found.rank,
                 std::make_exception_ptr(CommError(found.rank, "leave", found.message)));
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

void ThreadGroup::end_waits() noexcept {
  const std::lock_guard lock(mutex_);
  // Where all have come to point 0 they touch each other's memory, and come to the others by
  // themselves.
  for (const Lane* lane : {&streams_, &hosts_})
    for (const auto& meeting : lane->open)
      if (finish(meeting->points[0])) {
        finish(meeting->points[1]);
        finish(meeting->points[2]);
      }
  for (auto& [ends, channel] : channels_)
    for (const auto& message : channel.open)
      if (!message->direct) finish(message->arrival);
}

std::optional<WaitingRoom::Late> ThreadGroup::late(Clock::time_point limit) {
  const std::lock_guard lock(mutex_);
  const auto is_late = [limit](const Point& point) {
    return !point.over && point.first.load(std::memory_order_acquire) >= 0 && point.since < limit;
  };
  for (const Lane* lane : {&streams_, &hosts_}) {
    for (const auto& meeting : lane->open) {
      const Point& point = meeting->points[0];
      if (!is_late(point)) continue;
      std::string missing;
      for (std::size_t r = 0; r < members_.size(); ++r)
        if (!meeting->members[r].arrived)
          missing += concat(missing.empty() ? "rank " : ", rank ", members_[r]);
      const char* operation = meeting->members[index(point.first)].call.operation;
      return Late{world_rank(point.first), concat(operation, " on ", description_), missing,
                  point.since};
    }
  }
  for (const auto& [ends, channel] : channels_)
    for (const auto& message : channel.open)
      if (is_late(message->arrival) && !message->direct)
        return Late{world_rank(ends.second), "recv",
                    concat("a message from rank ", world_rank(ends.first)), message->arrival.since};
  return std::nullopt;
}

}  // namespace zero3d::detail
