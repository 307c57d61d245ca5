// The gradients of one rank: where backward writes them, how they are added over micro-batches and
// summed over ranks, overlapped with backward on a stream of their own. Follows a BucketPlan. Used
// from one host thread.
//
// Per micro-batch: begin_backward(), then for each unit open() before its first gradient is written
// and ready() after its last; backward of several micro-batches may be under way at once, as far as
// the plan says. A full bucket is passed to the reduce stream at once. With sharded gradients
// (stages 2 and 3) it is reduced over ranks, then added to the shard; otherwise it is added to the
// whole accumulator, which is reduced over ranks in the last micro-batch. Reduced shards of what
// several stages of a pipeline hold are summed over those stages at the end of the window.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/rank_streams.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/gradient_buffers.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/offloaded_gradients.h"
#include "zero3d/offload/stagger.h"

namespace zero3d {

struct GradientReducerOptions {
  DType gradient_dtype = DType::f32;      ///< What backward writes: the training parameters' dtype.
  DType accumulation_dtype = DType::f32;  ///< What micro-batches are added up in.
  bool reduce_each_micro_batch = false;   ///< Stages 2 and 3, or the debug switch.
  bool reduce_scatter =
      true;  ///< False: all-reduce and keep the own shard; the same values, twice the volume.
  bool shard_accumulators = false;  ///< Stages 2 and 3: keep only the shard between micro-batches.
  bool slots_needed =
      true;  ///< More than one micro-batch, or another dtype: backward cannot write in place.
  bool mean = true;               ///< Divide by the number of data-parallel ranks.
  bool prescale = false;          ///< Divide before the sum instead of after it.
  double predivide_factor = 1.0;  ///< Divide by this before the sum, by the rest after it.
  std::optional<DType> wire;      ///< Dtype that travels, when it is not what is summed anyway.
  bool square_sums = true;        ///< Take the block sums of the norm.
  bool offloads = false;          ///< Some units' reduced gradients leave the device.
  bool overlap = true;            ///< A bucket is reduced while another one is under way.

  /// Buckets of reduced shards that are on their way at once.
  int partials() const { return offloads && overlap ? 2 : 1; }
};

/// Whether reduce_scatter false needs fp32 copies of buckets: of 16-bit gradients, or for 16-bit
/// results.
bool all_reduces_copies(const GradientReducerOptions& options, int shards);

class GradientReducer {
 public:
  /// `offloaded` keeps the reduced gradients of its units; null: there are none.
  GradientReducer(Device& device, const ParamLayout& layout, const BucketPlan& plan,
                  ZeroGroups& groups, const GradientReducerOptions& options,
                  const RankStreams& streams, OffloadedGradients* offloaded = nullptr);

  /// `micro_batch` counts from 0 within the accumulation window; `last` ends it. Buffers that
  /// slots_needed said were not are allocated when a window has a second micro-batch after all.
  void begin_backward(int micro_batch, bool last);
  /// The whole padded unit for backward to write on the compute stream, its padding already zero;
  /// gradient_dtype. The same until ready().
  View open(int unit, int micro_batch);
  /// All of the unit's gradients of this micro-batch are enqueued on the compute stream.
  void ready(int unit, int micro_batch);
  /// `then(unit)` is called when a window's reduction of an offloaded unit is enqueued: work
  /// enqueued on the host's stream from there on sees it.
  void on_offloaded(std::function<void(int unit)> then) { then_ = std::move(then); }
  /// The window's gradients are being reduced: work enqueued on `stream` from here on sees
  /// reduced() and square_sums().
  void finish(Stream& stream);

  /// Between the two, micro-batches are only added up on this rank; the end reduces their sum as
  /// one. Allocates whole accumulators the first time where the stage keeps shards.
  void begin_coalescing();
  void end_coalescing();

  /// Between windows: gives up the device memory of gradients, which hold nothing then, and takes
  /// it again.
  void release_memory();
  void take_memory();

  /// This rank's shard of the averaged gradient, [shard] in accumulation_dtype, of a unit that is
  /// not offloaded; valid after finish, until the next window.
  View reduced(int unit);
  DType accumulation_dtype() const { return options_.accumulation_dtype; }
  /// Where the others' are; null when there are none.
  OffloadedGradients* offloaded() { return offloaded_; }
  /// Enqueues the copy of a unit's, wherever it is. For tools and tests, after finish.
  void copy_reduced(Stream& stream, int unit, const View& into);
  /// Sums of squares of the same in fp64, one per kNormBlock elements, of all trainable units in
  /// order, taken bucket by bucket as they are reduced; undefined when the options say not to.
  ConstView square_sums() const {
    return options_.square_sums ? ConstView(square_sums_.view()) : ConstView();
  }
  /// Enqueues on `stream` to take them anew: reduced() was changed.
  void refresh_square_sums(Stream& stream);

 private:
  struct BucketState {
    bool filled = false;     ///< The shards' accumulators hold something of this window.
    bool coalesced = false;  ///< The coalesced sums do.
    bool reduced = false;    ///< The window's gradients are, and their squares summed.
    Event done;              ///< The point where they were.
  };
  struct UnitState {
    StaggeredTensor accumulator;  ///< Padded, or the shard.
    Tensor
        coalesced;  ///< Padded: the sum of coalesced micro-batches, where accumulator is a shard.
    View square_sums;
  };
  /// A micro-batch between its first gradient and its last.
  struct Backward {
    std::vector<View> open;                         ///< Per unit; undefined while it is not.
    std::vector<int> waiting;                       ///< Per bucket: units not ready yet.
    std::vector<GradientBuffers::Buffer*> buffers;  ///< Per bucket: held by it, or null.
    std::size_t buckets = 0;                        ///< Not flushed yet.
    bool last = false;
  };
  UnitState& state(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  void allocate_square_sums();
  bool writes_in_place(int micro_batch) const;
  Backward& running(int micro_batch);
  View slot(int unit, int micro_batch);
  void flush(std::size_t bucket, int micro_batch, bool last);
  void add_up(std::size_t bucket, int micro_batch);
  void reduce_accumulated(std::size_t bucket);
  void reduce_into_shards(std::size_t bucket, int micro_batch, bool last);
  bool leaves(int unit) const { return offloaded_ != nullptr && offloaded_->holds(unit); }
  bool is_shared(int unit) const { return !layout_.unit(unit).stages.empty(); }
  /// Each micro-batch's reduced gradient leaves; of what stages share, the window's does.
  bool passes_on(int unit) const { return leaves(unit) && !is_shared(unit); }
  bool is_shared_bucket(std::size_t bucket) const {
    return is_shared(plan_.buckets[bucket].slots.front().unit);
  }
  void sum_over_stages();
  void complete(std::size_t bucket);
  void sum_squares(Stream& stream, int unit);
  void collect_square_sums(Stream& stream);
  void sum_over_ranks(const BucketPlan::Bucket& bucket, const std::vector<ReduceSegment>& segments);
  void reduce_to_shards(const std::vector<ReduceSegment>& segments, const ReduceOptions& options);

  Device& device_;
  const ParamLayout& layout_;
  const BucketPlan& plan_;
  ZeroGroups& groups_;
  GradientReducerOptions options_;
  Stream& compute_;
  Stream& reduce_;
  OffloadedGradients* const offloaded_;
  GradientBuffers buffers_;
  std::vector<UnitState> units_;
  std::vector<BucketState> buckets_;
  Tensor all_reduced_;  ///< fp32 copies of one bucket's gradients, for reduce_scatter false.
  /// Reduced shards of one bucket on their way into the accumulators, or off the device.
  struct Partial {
    Tensor storage;
    Event taken;  ///< The end of that.
  };
  std::vector<Partial> partials_;
  std::size_t next_partial_ = 0;
  Tensor square_sums_;
  std::map<int, Backward> running_;  ///< By micro-batch.
  std::function<void(int unit)> then_;
  bool ended_ = false;  ///< The micro-batch that ends the window has begun.
  bool coalescing_ = false;
};

}  // namespace zero3d
