#include "zero3d/device/hazard.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/event_state.h"

namespace zero3d {
namespace {

std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

std::string hexadecimal(std::uintptr_t value) {
  char text[2 + 2 * sizeof value + 1];
  std::snprintf(text, sizeof text, "0x%" PRIxPTR, value);
  return text;
}

bool empty(const Access& access) { return access.data == nullptr || access.bytes == 0; }

bool knows(const OrderCounts& known, std::size_t lane, std::uint64_t count) {
  return lane < known.size() && known[lane] >= count;
}

}  // namespace

HazardChecker::HazardChecker(std::string device) : device_(std::move(device)) {}

HazardChecker::Lane HazardChecker::add_lane(const std::string& stream) {
  std::lock_guard lock(mutex_);
  return add_lane_locked(std::make_shared<const std::string>(concat("stream '", stream, "'")));
}

HazardChecker::Lane HazardChecker::add_lane_locked(std::shared_ptr<const std::string> name) {
  Lane lane;
  lane.name_ = std::move(name);
  lane.index_ = lanes_++;
  lane.finished_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  lane.clock_.counts(domain_).resize(lanes_, 0);
  return lane;
}

void HazardChecker::launch(Lane& lane, const std::string& what, std::span<const Access> accesses) {
  std::lock_guard lock(mutex_);
  launch_locked(lane, what, accesses);
}

void HazardChecker::launch_locked(Lane& lane, const std::string& what,
                                  std::span<const Access> accesses) {
  catch_up_with_host(lane);
  OrderCounts& known = lane.clock_.counts(domain_);
  bool touches = false;
  for (const Access& access : accesses) {
    if (empty(access)) continue;
    touches = true;
    check(known, access, {what, *lane.name_});
  }
  known[lane.index_] = ++lane.count_;
  if (!touches) return;
  const auto launch = std::make_shared<const Launch>(
      Launch{what, lane.name_, lane.index_, lane.count_, lane.finished_});
  for (const Access& access : accesses) {
    if (!empty(access)) apply(launch, known, access);
  }
  if (ranges_.size() > sweep_above_) drop_observed();
}

OrderClock HazardChecker::record(Lane& lane) {
  std::lock_guard lock(mutex_);
  catch_up_with_host(lane);
  return lane.clock_;
}

void HazardChecker::wait(Lane& lane, const OrderClock& clock) {
  std::lock_guard lock(mutex_);
  lane.clock_.join(clock);
}

OrderClock HazardChecker::declare(const std::string& what, std::span<const Access> accesses,
                                  const OrderClock& after) {
  std::lock_guard lock(mutex_);
  OrderCounts known = domain_->observed();
  if (const OrderCounts* counts = after.find(*domain_)) join_counts(known, *counts);
  // A lane may serve again only for work that comes after its last: else the two would seem
  // ordered.
  const auto spare = std::find_if(spare_lanes_.begin(), spare_lanes_.end(), [&](const Lane& lane) {
    return knows(known, lane.index_, lane.count_);
  });
  Lane lane;
  if (spare != spare_lanes_.end()) {
    lane = std::move(*spare);
    spare_lanes_.erase(spare);
  } else {
    static const auto name = std::make_shared<const std::string>("an I/O queue");
    lane = add_lane_locked(name);
  }
  lane.clock_ = after;
  lane.clock_.join(domain_, known);
  lane.clock_.counts(domain_).resize(std::max(lanes_, known.size()), 0);
  launch_locked(lane, what, accesses);
  OrderClock end = lane.clock_;
  spare_lanes_.push_back(std::move(lane));
  return end;
}

void HazardChecker::host_access(const Access& access) {
  if (empty(access)) return;
  std::lock_guard lock(mutex_);
  const std::string what = access.write ? "host_write" : "host_read";
  const std::string host = "the host";
  check(domain_->observed(), access, {what, host});
}

bool HazardChecker::idle(const void* data, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const std::uintptr_t end = address(data) + bytes;
  const OrderCounts observed = domain_->observed();
  const auto ended = [&observed](const LaunchPtr& launch) {
    return launch == nullptr || knows(observed, launch->lane, launch->count) ||
           launch->finished->load(std::memory_order_acquire) >= launch->count;
  };
  for (auto range = first_after(address(data)); range != ranges_.end() && range->first < end;
       ++range) {
    const Range& uses = range->second;
    if (!ended(uses.writer) || !std::all_of(uses.readers.begin(), uses.readers.end(), ended))
      return false;
  }
  return true;
}

std::size_t HazardChecker::ranges() const {
  std::lock_guard lock(mutex_);
  return ranges_.size();
}

void HazardChecker::catch_up_with_host(Lane& lane) {
  const std::uint64_t version = domain_->version();
  OrderCounts& known = lane.clock_.counts(domain_);
  if (version != lane.seen_host_) {
    join_counts(known, domain_->observed());
    lane.seen_host_ = version;
  }
  if (known.size() <= lane.index_) known.resize(lane.index_ + 1, 0);
}

void HazardChecker::check(const OrderCounts& known, const Access& access,
                          const Asker& asker) const {
  const std::uintptr_t begin = address(access.data);
  const std::uintptr_t end = begin + access.bytes;
  for (auto range = first_after(begin); range != ranges_.end() && range->first < end; ++range) {
    const Range& uses = range->second;
    if (uses.writer != nullptr && !knows(known, uses.writer->lane, uses.writer->count))
      report(access, asker, *range, *uses.writer, true);
    if (!access.write) continue;
    for (const LaunchPtr& reader : uses.readers) {
      if (!knows(known, reader->lane, reader->count)) report(access, asker, *range, *reader, false);
    }
  }
}

void HazardChecker::report(const Access& access, const Asker& asker,
                           const Ranges::value_type& range, const Launch& other,
                           bool other_writes) const {
  const std::uintptr_t begin = std::max(address(access.data), range.first);
  const std::uintptr_t end = std::min(address(access.data) + access.bytes, range.second.end);
  throw Error(ErrorKind::kHazard,
              concat("hazard on ", device_, ": '", asker.what, "' on ", asker.stream,
                     access.write ? " writes " : " reads ",
                     format_count(static_cast<std::int64_t>(end - begin)), " bytes at ",
                     hexadecimal(begin), " (bytes ", begin - address(access.data), " to ",
                     end - address(access.data), " of the ", access.bytes, " it declares) that '",
                     other.what, "' on ", *other.stream, other_writes ? " writes" : " reads",
                     ", and nothing orders the two; record an event after '", other.what,
                     "' and wait on it before, or synchronize"));
}

void HazardChecker::apply(const LaunchPtr& launch, const OrderCounts& known, const Access& access) {
  const std::uintptr_t begin = address(access.data);
  const std::uintptr_t end = begin + access.bytes;
  split(begin);
  split(end);
  if (!access.write) {
    note_read(launch, known, begin, end);
    return;
  }
  // Everything before is ordered before this write, so whoever comes after it comes after all of
  // that.
  const auto first = ranges_.lower_bound(begin);
  auto last = first;
  while (last != ranges_.end() && last->first < end) ++last;
  const auto after = ranges_.erase(first, last);
  ranges_.emplace_hint(after, begin, Range{end, launch, {}});
}

void HazardChecker::note_read(const LaunchPtr& launch, const OrderCounts& known,
                              std::uintptr_t begin, std::uintptr_t end) {
  std::uintptr_t at = begin;
  auto range = ranges_.lower_bound(begin);
  while (at < end) {
    if (range == ranges_.end() || range->first > at) {  // bytes without a history
      const std::uintptr_t border = range == ranges_.end() ? end : std::min(end, range->first);
      ranges_.emplace_hint(range, at, Range{border, nullptr, {launch}});
      at = border;
      continue;
    }
    // Readers that come before this one are covered by it.
    std::vector<LaunchPtr>& readers = range->second.readers;
    std::erase_if(readers, [&known](const LaunchPtr& reader) {
      return knows(known, reader->lane, reader->count);
    });
    readers.push_back(launch);
    at = range->second.end;
    ++range;
  }
}

HazardChecker::Ranges::const_iterator HazardChecker::first_after(std::uintptr_t at) const {
  auto range = ranges_.upper_bound(at);
  if (range != ranges_.begin() && std::prev(range)->second.end > at) --range;
  return range;
}

void HazardChecker::split(std::uintptr_t at) {
  auto range = ranges_.lower_bound(at);
  if (range == ranges_.begin()) return;
  --range;
  if (range->second.end <= at) return;
  Range upper = range->second;
  range->second.end = at;
  ranges_.emplace_hint(std::next(range), at, std::move(upper));
}

void HazardChecker::drop_observed() {
  const OrderCounts observed = domain_->observed();
  const auto past = [&observed](const LaunchPtr& launch) {
    return launch == nullptr || knows(observed, launch->lane, launch->count);
  };
  for (auto range = ranges_.begin(); range != ranges_.end();) {
    std::erase_if(range->second.readers, past);
    const bool over = range->second.readers.empty() && past(range->second.writer);
    range = over ? ranges_.erase(range) : std::next(range);
  }
  sweep_above_ = std::max<std::size_t>(256, 2 * ranges_.size());
}

void declare_work(HazardChecker* checker, const std::string& what, std::span<const Access> accesses,
                  std::span<const Event> after, Event& done) {
  ZERO3D_CHECK(done.recorded(), "declare() before the record of its event has begun");
  OrderClock before;
  for (const Event& event : after) {
    if (!event.recorded())
      throw Error(ErrorKind::kHazard,
                  concat("'", what, "' starts after an event that was never recorded"));
    before.join(event.state()->order());
  }
  if (checker != nullptr) before = checker->declare(what, accesses, before);
  done.state()->set_order(std::move(before));
}

}  // namespace zero3d
