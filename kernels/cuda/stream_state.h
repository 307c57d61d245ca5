// What the bodies keep for a stream between calls: scratch memory, the first token or target that
// is out of range, and the matrix products' handle and workspace. Everything here is used in the
// order of that one stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "zero3d/kernels/cuda/native.h"

namespace zero3d::kernels::cuda {

class StreamState {
 public:
  virtual ~StreamState() = default;

  /// At least so many bytes of device memory, 256-byte aligned, of any content; what is enqueued
  /// next on the stream may use them until the next call. Growing waits for the stream.
  virtual std::byte* scratch(std::size_t bytes) = 0;

  /// A word of device memory where kernels leave the least bad_element() by atomicMin: that of the
  /// check that has begun, else one that nobody reads.
  virtual std::uint64_t* bad_word() = 0;
  /// Bodies called from here on leave what they find in a word of this check, whose copy in host
  /// memory is given: it holds kNoBadElement or, once what end_check() enqueues is over, what was
  /// found. The word belongs to the check as long as somebody holds the copy.
  virtual std::shared_ptr<const std::uint64_t> begin_check() = 0;
  virtual void end_check() = 0;

  /// What `make` made at the first call.
  virtual void* products(const std::function<std::shared_ptr<void>()>& make) = 0;
};

/// Of a stream of the calling thread's device, made at the first call and kept for the process. A
/// stream that gets the handle of one that has ended goes on with what that one left.
StreamState& state_of(NativeStream stream);

inline constexpr std::uint64_t kNoBadElement = ~std::uint64_t{0};
/// An element that is not what it must be, and where.
struct BadElement {
  std::int64_t row;
  std::int32_t value;
};
inline BadElement bad_element(std::uint64_t word) {
  return {static_cast<std::int64_t>(word >> 32), static_cast<std::int32_t>(word)};
}

}  // namespace zero3d::kernels::cuda
