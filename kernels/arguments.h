// Argument checks of the kernels over rows. Each throws Error(kInvalid) naming the kernel, the
// argument, what was expected and what was found; messages are built only on failure.
#pragma once

#include <cstdint>

#include "zero3d/core/view.h"
#include "zero3d/kernels/args/rows.h"
#include "zero3d/kernels/dispatch.h"
#include "zero3d/kernels/vocabulary_part.h"

namespace zero3d::kernels {

/// `view` is defined, of `dtype`, with `count` elements.
inline void require_elements(const char* what, const char* name, const ConstView& view, DType dtype,
                             std::int64_t count) {
  if (view.defined() && view.dtype() == dtype && view.numel() == count) return;
  throw_invalid(concat(what, ": expected ", name, " to be ", name_of(dtype), " with ", count,
                       " elements, but ", describe(name, view)));
}

/// `view` has the dtype and the number of elements of `x`.
inline void require_like(const char* what, const char* name, const ConstView& view,
                         const ConstView& x) {
  require_elements(what, name, view, x.dtype(), x.numel());
}

/// `view` is a float tensor of any dtype with `count` elements.
inline void require_float_elements(const char* what, const char* name, const ConstView& view,
                                   std::int64_t count) {
  require_float(what, name, view);
  if (view.numel() == count) return;
  throw_invalid(concat(what, ": expected ", name, " to have ", count, " elements, but ",
                       describe(name, view)));
}

/// `columns` lie within their matrix, which is [rows, any] of `dtype`; there are `count` of them.
inline void require_columns(const char* what, const char* name, const ConstColumns& columns,
                            DType dtype, std::int64_t rows, std::int64_t count) {
  const ConstView& matrix = columns.matrix;
  if (matrix.defined() && matrix.dtype() == dtype && matrix.shape().rows() == rows &&
      columns.count == count && columns.begin >= 0 &&
      columns.begin + columns.count <= columns.stride())
    return;
  throw_invalid(concat(what, ": expected ", name, " to be ", count, " columns of a ",
                       name_of(dtype), " matrix of ", rows, " rows, but it is columns ",
                       columns.begin, " to ", columns.begin + columns.count, " and ",
                       describe("its matrix", matrix)));
}

/// `part` lies within its vocabulary, and there is room for it where `stored` entries are.
inline void require_part(const char* what, const VocabularyPart& part, std::int64_t stored) {
  require(part.first >= 0 && part.count >= 0 && part.count <= stored &&
              part.first + part.count <= part.total,
          what, "expected a part of the vocabulary within the ", stored,
          " entries that are stored, but it is ", part.count, " from ", part.first, " of ",
          part.total);
}

/// What a back end gets of columns.
inline ConstRows rows_of(const ConstColumns& columns) {
  return {columns.matrix.data() +
              static_cast<std::size_t>(columns.begin) * size_of(columns.matrix.dtype()),
          columns.stride()};
}
inline Rows rows_of(const Columns& columns) {
  return {columns.matrix.data() +
              static_cast<std::size_t>(columns.begin) * size_of(columns.matrix.dtype()),
          columns.stride()};
}

}  // namespace zero3d::kernels
