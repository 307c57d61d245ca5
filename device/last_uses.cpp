#include "zero3d/device/last_uses.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace zero3d {

void LastUses::add(std::uintptr_t begin, std::uintptr_t end, const MemoryOrder& order,
                   std::vector<Event> events) {
  Range range{end, order.stream(), std::move(events)};
  if (range.owner == nullptr && range.events.empty()) return;
  auto above = ranges_.lower_bound(begin);
  if (above != ranges_.end() && above->first == end && range.merges_with(above->second)) {
    range.end = above->second.end;
    above = ranges_.erase(above);
  }
  if (above != ranges_.begin()) {
    Range& below = std::prev(above)->second;
    if (below.end == begin && range.merges_with(below)) {
      below.end = range.end;
      return;
    }
  }
  ranges_.emplace_hint(above, begin, std::move(range));
}

std::vector<Event> LastUses::take(std::uintptr_t begin, std::uintptr_t end,
                                  const MemoryOrder& order) {
  std::vector<Event> before;
  std::vector<Owner> owners;
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != ranges_.end() && at->first < end) {
    Range& range = at->second;
    before.insert(before.end(), range.events.begin(), range.events.end());
    const bool other = range.owner != order.stream() && range.owner != nullptr;
    if (other && std::find(owners.begin(), owners.end(), range.owner) == owners.end())
      owners.push_back(range.owner);
    if (range.end > end) ranges_.emplace_hint(std::next(at), end, range);
    if (at->first < begin) {
      range.end = begin;
      ++at;
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
