// Non-owning views of dense row-major tensors. A view never outlives the buffer it looks into; on
// an asynchronous device its bytes may only be touched by work enqueued on a stream, or by the host
// after a wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "zero3d/core/dtype.h"
#include "zero3d/core/error.h"
#include "zero3d/core/shape.h"

namespace zero3d {

template <typename Byte>
class BasicView {
 public:
  BasicView() = default;  ///< Undefined: no data.
  BasicView(Byte* data, DType dtype, const Shape& shape)
      : data_(data), dtype_(dtype), shape_(shape) {}
  /// A mutable view converts to a const one.
  template <typename Other, typename = std::enable_if_t<std::is_convertible_v<Other*, Byte*>>>
  BasicView(const BasicView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), dtype_(other.dtype()), shape_(other.shape()) {}

  bool defined() const { return data_ != nullptr; }
  Byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t numel() const { return shape_.numel(); }
  std::size_t bytes() const {
    return defined() ? static_cast<std::size_t>(numel()) * size_of(dtype_) : 0;
  }

  /// The elements as T; throws Error(kInternal) when T is not the view's dtype.
  template <typename T>
  auto* as() const {
    ZERO3D_CHECK(dtype_of<T>::value == dtype_, "view read as another dtype");
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Element*>(data_);
  }

  /// Elements [begin, begin + count) in memory order, as a view of rank 1.
  BasicView flat(std::int64_t begin, std::int64_t count) const {
    ZERO3D_CHECK(begin >= 0 && count >= 0 && begin + count <= numel(),
                 "flat slice outside its view");
    return BasicView(data_ + static_cast<std::size_t>(begin) * size_of(dtype_), dtype_,
                     Shape{count});
  }
  /// The same elements in another shape of equal numel.
  BasicView reshaped(const Shape& shape) const {
    ZERO3D_CHECK(shape.numel() == numel(), "reshape to another number of elements");
    return BasicView(data_, dtype_, shape);
  }

 private:
  Byte* data_ = nullptr;
  DType dtype_ = DType::f32;
  Shape shape_;
};

using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

/// Columns [begin, begin + count) of a row-major matrix [rows, width]: a head's slice of a fused
/// projection.
template <typename V>
struct BasicColumns {
  V matrix;
  std::int64_t begin = 0;
  std::int64_t count = 0;

  BasicColumns() = default;
  BasicColumns(V m, std::int64_t first, std::int64_t columns)
      : matrix(m), begin(first), count(columns) {}
  /// All columns of `m`.
  explicit BasicColumns(V m) : matrix(m), begin(0), count(m.shape().last()) {}
  template <typename Other>
  BasicColumns(const BasicColumns<Other>& other)  // NOLINT(google-explicit-constructor)
      : matrix(other.matrix), begin(other.begin), count(other.count) {}
  std::int64_t stride() const { return matrix.shape().last(); }
};
using Columns = BasicColumns<View>;
using ConstColumns = BasicColumns<ConstView>;

}  // namespace zero3d
