#include "zero3d/offload/stagger.h"

#include <utility>

namespace zero3d {

std::int64_t Stagger::slack(std::int64_t bytes) {
  return bytes < kSmall ? 0 : bytes < kLarge ? kPage : kPeriod;
}

std::int64_t Stagger::place(std::int64_t at, std::int64_t bytes, int colour) {
  const std::int64_t period = slack(bytes);
  if (period == 0) return at;
  const std::int64_t wanted = colour * (kPage + kLines) - at;
  return at + (wanted % period + period) % period;
}

StaggeredTensor::StaggeredTensor(TrackingResource& resource, DType dtype, std::int64_t elements,
                                 Category category, ArrayColour colour)
    : category_(category), colour_(colour) {
  const std::int64_t bytes = bytes_of(elements, dtype);
  storage_ = Tensor(resource, kNoStream, DType::u8, Shape{bytes + Stagger::slack(bytes)}, category);
  const auto base = reinterpret_cast<std::intptr_t>(storage_.view().data());
  const std::int64_t offset = Stagger::place(base, bytes, static_cast<int>(colour)) - base;
  view_ = View(storage_.view().data() + offset, dtype, Shape{elements});
}

void StaggeredTensor::move_to(Device& device, Stream& stream, Tier tier) {
  StaggeredTensor there(device.memory(tier), view_.dtype(), numel(), category_, colour_);
  device.copy(stream, there.view(), view());
  stream.synchronize();
  *this = std::move(there);
}

}  // namespace zero3d
