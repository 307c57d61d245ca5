// A value on its way from the device to the host: a copy to host memory and the event that ends it.
#pragma once

#include "zero3d/device/device.h"

namespace zero3d {

class Readback {
 public:
  Readback() = default;
  /// Enqueues the copy of `view`, whose bytes may be given back or written by later work of
  /// `stream`.
  Readback(Stream& stream, const ConstView& view);

  bool defined() const { return host_.defined(); }
  /// Waits for the copy. The bytes live as long as this.
  ConstView wait() const;

 private:
  Device* device_ = nullptr;
  Tensor host_;
  Event copied_;
};

}  // namespace zero3d
