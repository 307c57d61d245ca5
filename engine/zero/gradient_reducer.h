// The gradients of one rank: where backward writes them, how they are added over micro-batches and
// summed over ranks, overlapped with backward on a stream of their own. Follows a BucketPlan. Used
// from one host thread.
//
// Per micro-batch, for each unit: open() before its first gradient is written, ready() after its
// last. A full bucket is passed to the reduce stream at once. With sharded gradients (stages 2 and
// 3) it is reduced over ranks, then added to the shard; otherwise it is added to the whole
// accumulator, which is reduced over ranks in the last micro-batch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {

struct GradientReducerOptions {
  DType gradient_dtype = DType::f32;      ///< What backward writes: the training parameters' dtype.
  DType accumulation_dtype = DType::f32;  ///< What micro-batches are added up in.
  bool reduce_each_micro_batch = false;   ///< Stages 2 and 3, or the debug switch.
  bool shard_accumulators = false;  ///< Stages 2 and 3: keep only the shard between micro-batches.
  bool slots_needed =
      true;  ///< More than one micro-batch, or another dtype: backward cannot write in place.
  bool mean = true;               ///< Divide by the number of data-parallel ranks.
  bool prescale = false;          ///< Divide before the sum instead of after it.
  double predivide_factor = 1.0;  ///< Divide by this before the sum, by the rest after it.
  std::optional<DType> wire;  ///< communication_data_type, when it is not what is summed anyway.
};

class GradientReducer {
 public:
  GradientReducer(Device& device, const ParamLayout& layout, const BucketPlan& plan,
                  ZeroGroups& groups, const GradientReducerOptions& options, Stream& compute,
                  Stream& reduce);

  /// `index` counts from 0 within the accumulation window; `last` ends it.
  void begin_micro_batch(int index, bool last);
  /// The whole padded unit for backward to write on the compute stream, its padding already zero;
  /// gradient_dtype.
  View open(int unit);
  /// All of the unit's gradients of this micro-batch are enqueued on the compute stream.
  void ready(int unit);
  /// The window's gradients are being reduced: work enqueued on `stream` from here on sees
  /// reduced().
  void finish(Stream& stream);

  /// This rank's shard of the averaged gradient, [shard] in accumulation_dtype; valid after finish,
  /// until the next window.
  View reduced(int unit);

 private:
  struct BufferState {
    Tensor storage;
    Event free;  ///< The reduce stream is done with the bucket that used it last.
  };
  struct UnitState {
    Tensor accumulator;  ///< Padded, or the shard.
    View open;
  };
  bool writes_in_place() const;
  BufferState& buffer_of(int bucket);
  View slot(int unit);
  void flush(const BucketPlan::Bucket& bucket, BufferState& buffer);
  void accumulate(const BucketPlan::Bucket& bucket);
  void reduce_accumulated(const BucketPlan::Bucket& bucket);
  void reduce_and_accumulate(const BucketPlan::Bucket& bucket);
  void sum_over_ranks(const std::vector<ReduceSegment>& segments);

  Device& device_;
  const ParamLayout& layout_;
  const BucketPlan& plan_;
  ZeroGroups& groups_;
  GradientReducerOptions options_;
  Stream& compute_;
  Stream& reduce_;
  std::vector<BufferState> shared_buffers_;
  std::vector<BufferState> own_buffers_;  ///< Per bucket; used by those with a buffer of their own.
  std::vector<UnitState> units_;
  std::vector<int> waiting_;  ///< Per bucket: units not ready yet in this micro-batch.
  Tensor partial_;            ///< Reduced shards of one bucket on their way into the accumulators.
  int micro_batch_ = 0;
  bool last_ = false;
};

}  // namespace zero3d
