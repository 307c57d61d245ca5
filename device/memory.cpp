// Buffer and Tensor: owners of what a memory resource hands out.
#include "zero3d/device/memory.h"

#include <utility>

namespace zero3d {

Buffer::Buffer(MemoryResource& resource, std::size_t bytes, const char* category)
    : resource_(&resource),
      data_(static_cast<std::byte*>(resource.allocate(bytes, category))),
      bytes_(bytes),
      category_(category) {}

Buffer::Buffer(Buffer&& other) noexcept
    : resource_(std::exchange(other.resource_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      category_(other.category_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    resource_ = std::exchange(other.resource_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    category_ = other.category_;
  }
  return *this;
}

Buffer::~Buffer() { reset(); }

void Buffer::reset() {
  if (data_ != nullptr) resource_->deallocate(data_, bytes_, category_);
  data_ = nullptr;
  bytes_ = 0;
}

Tensor::Tensor(MemoryResource& resource, DType dtype, const Shape& shape, const char* category)
    : buffer_(resource, static_cast<std::size_t>(shape.numel()) * size_of(dtype), category),
      dtype_(dtype),
      shape_(shape) {}

void Tensor::reshape(const Shape& shape) {
  ZERO3D_CHECK(shape.numel() == shape_.numel(), "reshape to another number of elements");
  shape_ = shape;
}

}  // namespace zero3d
