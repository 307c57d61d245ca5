// One allocation whose ranges change hands under events: the giver leaves an event behind, the
// taker's stream waits for it. The host running ahead of the streams never changes how much memory
// is used.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/device/device.h"

namespace zero3d {

class FencedArena {
 public:
  FencedArena() = default;
  FencedArena(Device& device, DType dtype, std::int64_t elements, Category category);

  /// Elements [offset, offset + count) for work on `stream`, which waits until earlier owners of
  /// any of them are done.
  View acquire(Stream& stream, std::int64_t offset, std::int64_t count);
  /// The range may be taken again once `last_use` is done.
  void release(std::int64_t offset, std::int64_t count, const Event& last_use);

  std::int64_t elements() const { return storage_.defined() ? storage_.numel() : 0; }

 private:
  struct Fence {
    std::int64_t begin;
    std::int64_t end;
    Event last_use;
  };
  Tensor storage_;
  std::vector<Fence> fences_;
};

}  // namespace zero3d
