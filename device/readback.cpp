#include "zero3d/device/readback.h"

namespace zero3d {

Readback::Readback(Stream& stream, const ConstView& view)
    : device_(&stream.device()),
      host_(device_->memory(Tier::pinned), kNoStream, view.dtype(), view.shape(), Category::other) {
  device_->copy(stream, host_, view);
  stream.record(copied_);
  host_.used_on(copied_);
}

ConstView Readback::wait() const {
  copied_.wait();
  return device_->host_read(host_);
}

}  // namespace zero3d
