// What tests write to and read from device memory, by way of host memory as the host must.
#pragma once

#include <functional>

#include "zero3d/device/device.h"
#include "zero3d/device/readback.h"

namespace zero3d::test {

/// The view's bytes once `stream` has done all that was enqueued.
inline Readback read_back(Stream& stream, const ConstView& view) {
  stream.synchronize();
  return Readback(stream, view);
}

/// fill(host) writes the bytes that the device view gets, behind all work of `stream`; waits.
inline void upload(Stream& stream, const View& view, const std::function<void(const View&)>& fill) {
  const Tensor host(stream.device().memory(Tier::pinned), kNoStream, view.dtype(), view.shape(),
                    Category::other);
  fill(host.view());
  stream.device().copy(stream, view, host);
  stream.synchronize();
}

}  // namespace zero3d::test
