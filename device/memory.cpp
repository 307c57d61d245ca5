// Buffer and Tensor: owners of what a resource hands out.
#include "zero3d/device/memory.h"

#include <utility>

namespace zero3d {

Buffer::Buffer(TrackingResource& resource, const MemoryOrder& order, std::size_t bytes,
               Category category)
    : resource_(&resource),
      data_(static_cast<std::byte*>(resource.allocate(bytes, category, order))),
      bytes_(bytes),
      category_(category),
      order_(order) {}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    resource_ = std::exchange(other.resource_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    category_ = other.category_;
    order_ = std::move(other.order_);
    uses_ = std::move(other.uses_);
  }
  return *this;
}

Buffer::~Buffer() { reset(); }

void Buffer::used_on(const Event& event) {
  if (!event.recorded())
    throw Error(ErrorKind::kHazard,
                "memory is used until an event that was never recorded; record it on the stream "
                "that uses the memory first");
  uses_.push_back(event);
}

void Buffer::reset() {
  if (data_ != nullptr) resource_->deallocate(data_, bytes_, category_, order_, std::move(uses_));
  data_ = nullptr;
  bytes_ = 0;
  uses_.clear();
}

Tensor::Tensor(TrackingResource& resource, const MemoryOrder& order, DType dtype,
               const Shape& shape, Category category)
    : buffer_(resource, order, static_cast<std::size_t>(shape.numel()) * size_of(dtype), category),
      dtype_(dtype),
      shape_(shape) {}

void Tensor::reshape(const Shape& shape) {
  ZERO3D_CHECK(shape.numel() == shape_.numel(), "reshape to another number of elements");
  shape_ = shape;
}

}  // namespace zero3d
