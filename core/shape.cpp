#include "zero3d/core/shape.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  for (std::int64_t extent : dims) append(extent);
}

void Shape::append(std::int64_t extent) {
  if (rank_ == kMaxRank) throw_invalid(concat("a tensor has at most ", kMaxRank, " dims"));
  if (extent < 0) throw_invalid(concat("a dim of ", extent, " elements: extents are not negative"));
  dims_[static_cast<std::size_t>(rank_++)] = extent;
}

std::int64_t Shape::numel() const {
  std::int64_t product = 1;
  for (int dim = 0; dim < rank_; ++dim) product *= (*this)[dim];
  return product;
}

std::int64_t Shape::rows() const {
  std::int64_t product = 1;
  for (int dim = 0; dim + 1 < rank_; ++dim) product *= (*this)[dim];
  return product;
}

bool operator==(const Shape& a, const Shape& b) {
  if (a.rank_ != b.rank_) return false;
  for (int dim = 0; dim < a.rank_; ++dim) {
    if (a[dim] != b[dim]) return false;
  }
  return true;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int dim = 0; dim < shape.rank(); ++dim) text += concat(dim ? ", " : "", shape[dim]);
  return text + "]";
}

}  // namespace zero3d
