// Growing 64-byte aligned memory, kept by a thread for the tiles it computes. Use it only where no
// loop runs inside: a thread never starts a second tile before it has finished the first.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace zero3d::kernels::cpu {

class Scratch {
 public:
  /// At least `count` elements of T, of any content, valid until the next call.
  template <typename T>
  T* get(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes > bytes_ || data_ == nullptr) {
      data_.reset();
      bytes_ = 0;
      data_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      bytes_ = bytes;
    }
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace zero3d::kernels::cpu
