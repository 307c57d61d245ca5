// Exact sums on the device: what square_sums' blocks add up to, whatever their order (ExactSum of
// core), and the first of them that is not finite.
#pragma once

#include <cstdint>
#include <span>

#include "zero3d/core/exact_sum.h"
#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d::kernels {

/// Values [first, first + count) belong to sum number `sum`.
struct SumRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t sum = 0;
  std::int64_t name = 0;  ///< What says where a value that is not finite was found.
};

/// sums (u8, one ExactSum after the other) = per sum, all values (f64) of its ranges; nothing adds
/// up to 0. bad_range (i64 [2]; may be undefined) = the name of the first of the ranges with a
/// value that is not finite, and 1 if that value is a NaN; -1 and 0 where all are finite.
void exact_sums(Stream& stream, const ConstView& values, std::span<const SumRange> ranges,
                const View& sums, const View& bad_range);

/// values[i] (f64 [n]) = the rounded total of ExactSum number i of each of `parts` lists of n.
void exact_totals(Stream& stream, const ConstView& sums, std::int64_t parts, const View& values);

}  // namespace zero3d::kernels
