// The device memory that backward writes gradients into, bucket by bucket, as a BucketPlan deals it
// out. Written on the compute stream, read on the reduce stream; used from one host thread.
#pragma once

#include <list>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/zero/bucket_plan.h"

namespace zero3d {

class GradientBuffers {
 public:
  struct Buffer {
    Tensor storage;
    Event free;         ///< Recorded when the reduce stream is done with what it held last.
    bool held = false;  ///< By a bucket, from its first gradient to its last.
  };

  /// The referred objects must outlive this.
  GradientBuffers(Device& device, const BucketPlan& plan, DType dtype, Stream& compute)
      : device_(device),
        plan_(plan),
        dtype_(dtype),
        compute_(compute),
        planned_(plan.buffer_elements.size()) {}

  /// The planned ones; before the first take().
  void allocate();
  /// Gives them up; nothing that is enqueued uses them.
  void release();
  /// The bucket's until give_back(): the buffer that the plan has for it or, while another bucket
  /// holds that, which no planned order of backward does, one beyond the plan, with one warning.
  /// Later work on the compute stream may write it.
  Buffer& take(std::size_t bucket, int micro_batch);
  /// The bucket's work on it is enqueued.
  void give_back(Buffer& buffer);

 private:
  Device& device_;
  const BucketPlan& plan_;
  DType dtype_;
  Stream& compute_;
  std::vector<Buffer> planned_;
  std::list<Buffer> extra_;
  bool warned_ = false;
};

}  // namespace zero3d
