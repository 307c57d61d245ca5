// Who used free bytes last: the stream whose order they were given back in, and events of uses
// elsewhere. Whoever gets the bytes next comes after these.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zero3d/device/event.h"
#include "zero3d/device/memory.h"

namespace zero3d {

class LastUses {
 public:
  /// Bytes [begin, end) are given back in `order` and with `events`.
  void add(std::uintptr_t begin, std::uintptr_t end, const MemoryOrder& order,
           std::vector<Event> events);
  /// Bytes [begin, end) are handed out in `order`: forgets their uses, and says what that order has
  /// yet to wait for. Records a point on the streams that used them.
  std::vector<Event> take(std::uintptr_t begin, std::uintptr_t end, const MemoryOrder& order);
  /// Ranges with a use; neighbours of one stream count as one.
  std::size_t size() const { return ranges_.size(); }

 private:
  using Owner = std::shared_ptr<const StreamHandle>;
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    Owner owner;
    std::vector<Event> events;

    bool merges_with(const Range& other) const {
      return owner == other.owner && events.empty() && other.events.empty();
    }
  };
  /// By first byte. Blocks are cut from the ends of free ranges and come back to them: nearly every
  /// call changes a range in place.
  std::vector<Range> ranges_;
};

}  // namespace zero3d
