#include "zero3d/engine/zero/gradient_buffers.h"

#include "zero3d/core/log.h"

namespace zero3d {

void GradientBuffers::allocate() {
  for (std::size_t index = 0; index < planned_.size(); ++index) {
    planned_[index].storage =
        Tensor(device_.memory(), compute_, dtype_, Shape{plan_.buffer_elements[index]},
               Category::gradient_buckets);
  }
}

void GradientBuffers::release() {
  for (Buffer& buffer : planned_) buffer = {};
  extra_.clear();
}

GradientBuffers::Buffer& GradientBuffers::take(std::size_t bucket, int micro_batch) {
  const std::vector<int>& turns = plan_.buckets[bucket].buffers;
  const int planned = turns[static_cast<std::size_t>(micro_batch) % turns.size()];
  Buffer* buffer = &planned_[static_cast<std::size_t>(planned)];
  if (buffer->held) {
    if (!warned_) {
      log_warning(
          "backward left the planned order: a bucket of gradients begins while another has its "
          "buffer, and takes device memory beyond the plan. Run backward from the last block to "
          "the first, or give its order as a schedule.");
    }
    warned_ = true;
    buffer = &extra_.emplace_back();
    buffer->storage = Tensor(device_.memory(), compute_, dtype_,
                             Shape{plan_.buckets[bucket].elements}, Category::gradient_buckets);
  }
  buffer->held = true;
  if (buffer->free.recorded()) compute_.wait(buffer->free);
  return *buffer;
}

void GradientBuffers::give_back(Buffer& buffer) {
  buffer.held = false;
  extra_.remove_if([](Buffer& extra) {
    if (extra.held) return false;
    if (extra.free.recorded()) extra.storage.used_on(extra.free);
    return true;
  });
}

}  // namespace zero3d
