#include "zero3d/device/fenced_arena.h"

#include <algorithm>

namespace zero3d {

FencedArena::FencedArena(Device& device, DType dtype, std::int64_t elements, Category category)
    : storage_(device.memory(), kNoStream, dtype, Shape{elements}, category) {}

View FencedArena::acquire(Stream& stream, std::int64_t offset, std::int64_t count) {
  for (const Fence& fence : fences_) {
    if (fence.begin < offset + count && offset < fence.end) stream.wait(fence.last_use);
  }
  return storage_.view().flat(offset, count);
}

void FencedArena::release(std::int64_t offset, std::int64_t count, const Event& last_use) {
  // A fence that the new one covers is implied by it: its range was acquired, so waited for, in
  // between.
  std::erase_if(fences_, [&](const Fence& fence) {
    return offset <= fence.begin && fence.end <= offset + count;
  });
  fences_.push_back({offset, offset + count, last_use});
}

}  // namespace zero3d
