// Conversions, copies, sums and scalings over whole tensors, and the norm's block sums.
#pragma once

#include <span>

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d::kernels {

/// dst = round(src); equal numel, any two of f32, bf16 and f16.
void convert(Stream& stream, const ConstView& src, const View& dst);
/// dst = round(dst + src), computed in fp32; dtypes may differ.
void add(Stream& stream, const ConstView& src, const View& dst);
/// dst = src, of one dtype and as many columns and rows.
void copy_columns(Stream& stream, const ConstColumns& src, const Columns& dst);
/// dst = round(the sum of `parts`, taken in their order in fp32), of one float dtype and as many
/// columns and rows; at least one part.
void sum_columns(Stream& stream, std::span<const ConstColumns> parts, const Columns& dst);
/// dst = round(dst + round(src * factor)), both in fp32; dtypes may differ.
void add_scaled(Stream& stream, const ConstView& src, float factor, const View& dst);
/// x = round(x * factor).
void scale(Stream& stream, const View& x, float factor);
/// x = round(value).
void fill(Stream& stream, const View& x, float value);

inline constexpr std::int64_t kNormBlock = 1024;
/// sums[i] = sum of squares, in fp64 in one fixed tree, of elements [i * 1024, (i + 1) * 1024) of x
/// (f32, bf16, f16). sums: f64 [ceil(numel / 1024)]. A block with an inf or NaN gives inf or NaN.
/// The gradient norm's first level.
void square_sums(Stream& stream, const ConstView& x, const View& sums);

}  // namespace zero3d::kernels
