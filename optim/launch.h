// From slices to loops: checks an update's views, declares what it reads and writes, and enqueues
// it as one launch that spreads over the device's threads in chunks that do not depend on their
// number.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "zero3d/device/stream.h"
#include "zero3d/optim/simd/kernels.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

/// A range of one slice's elements, by the loop of some rule.
using SliceLoop = std::function<void(std::size_t slice, const simd::ElementArrays&,
                                     std::int64_t begin, std::int64_t end)>;

struct LaunchShape {
  std::size_t states = 0;  ///< How many of the slice's states the loop updates.
  enum class Master { none, read, update } master = Master::update;
  std::span<const ConstView> reads_too = {};  ///< What the loop reads beside the slices.
};

/// extra[i], when given, is written as the state after slice i's own: LAMB's direction, Muon's
/// blend. Throws Error(kInternal) when views disagree in number or have a dtype the loops do not
/// take.
void launch_loop(Stream& stream, const std::string& what, const LaunchShape& shape,
                 std::span<const UpdateSlice> slices, std::span<const View> extra, SliceLoop loop);

/// The same with one loop and one set of constants for all slices.
template <typename Constants>
void launch_rule(Stream& stream, const std::string& what, const LaunchShape& shape,
                 std::span<const UpdateSlice> slices, std::span<const View> extra,
                 simd::Loop<Constants> loop, const Constants& constants) {
  launch_loop(stream, what, shape, slices, extra,
              [loop, constants](std::size_t, const simd::ElementArrays& arrays, std::int64_t begin,
                                std::int64_t end) { loop(constants, arrays, begin, end); });
}

}  // namespace zero3d
