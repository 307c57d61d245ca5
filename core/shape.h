// The extents of a dense row-major tensor; a small value type that never allocates.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace zero3d {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;  ///< Rank 0: one element.
  Shape(std::initializer_list<std::int64_t> dims);

  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const { return dims_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) { return dims_[static_cast<std::size_t>(dim)]; }
  void append(std::int64_t extent);
  /// The product of all extents; 1 for rank 0.
  std::int64_t numel() const;
  /// The product of all extents but the last: the rows of the tensor seen as a matrix.
  std::int64_t rows() const;
  std::int64_t last() const { return rank_ == 0 ? 1 : dims_[static_cast<std::size_t>(rank_ - 1)]; }

  friend bool operator==(const Shape& a, const Shape& b);
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// "[2, 3]".
std::string to_string(const Shape& shape);

}  // namespace zero3d
