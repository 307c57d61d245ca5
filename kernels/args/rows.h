// A matrix of which a kernel sees some columns: the address of its first element and the elements
// from one row to the next.
#pragma once

#include <cstdint>

namespace zero3d::kernels {

struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};
struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

template <typename T>
T* row_of(const Rows& rows, std::int64_t row) {
  return static_cast<T*>(rows.data) + row * rows.stride;
}
template <typename T>
const T* row_of(const ConstRows& rows, std::int64_t row) {
  return static_cast<const T*>(rows.data) + row * rows.stride;
}

}  // namespace zero3d::kernels
