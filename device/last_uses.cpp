#include "zero3d/device/last_uses.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace zero3d {

void LastUses::add(std::uintptr_t begin, std::uintptr_t end, const MemoryOrder& order,
                   std::vector<Event> events) {
  Range range{begin, end, order.stream(), std::move(events)};
  if (range.owner == nullptr && range.events.empty()) return;
  const auto above =
      std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                       [](const Range& each, std::uintptr_t at) { return each.begin < at; });
  const auto below = above == ranges_.begin() ? ranges_.end() : std::prev(above);
  const bool joins_above =
      above != ranges_.end() && above->begin == end && range.merges_with(*above);
  const bool joins_below =
      below != ranges_.end() && below->end == begin && range.merges_with(*below);
  if (joins_above && joins_below) {
    below->end = above->end;
    ranges_.erase(above);
  } else if (joins_above) {
    above->begin = begin;
  } else if (joins_below) {
    below->end = end;
  } else {
    ranges_.insert(above, std::move(range));
  }
}

std::vector<Event> LastUses::take(std::uintptr_t begin, std::uintptr_t end,
                                  const MemoryOrder& order) {
  std::vector<Event> before;
  std::vector<Owner> owners;
  auto at =
      std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                       [](std::uintptr_t first, const Range& each) { return first < each.end; });
  while (at != ranges_.end() && at->begin < end) {
    before.insert(before.end(), at->events.begin(), at->events.end());
    const bool other = at->owner != order.stream() && at->owner != nullptr;
    if (other && std::find(owners.begin(), owners.end(), at->owner) == owners.end())
      owners.push_back(at->owner);
    const bool starts_before = at->begin < begin;
    const bool ends_after = end < at->end;
    if (starts_before && ends_after) {
      at = std::prev(ranges_.insert(std::next(at), *at));
      std::next(at)->begin = end;
    }
    if (starts_before) {
      (at++)->end = begin;
    } else if (ends_after) {
      at->begin = end;
    } else {
      at = ranges_.erase(at);
    }
  }
  for (const Owner& owner : owners) {
    if (owner->stream == nullptr) continue;
    owner->stream->record(before.emplace_back());
  }
  return before;
}

}  // namespace zero3d
