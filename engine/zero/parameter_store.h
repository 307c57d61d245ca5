// The parameters of one rank: shards, whole copies, and the gathers between them on a stream of
// their own. Shards that are offloaded lie elsewhere (shard_home) and are copied to where they are
// gathered. It follows a FetchPlan as long as operations come in the planned order, and gathers on
// demand, with one warning, when they do not. Used from one host thread; hands out views for work
// on the compute stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/device/fenced_arena.h"
#include "zero3d/device/wait_clock.h"
#include "zero3d/engine/parameter_source.h"
#include "zero3d/engine/rank_streams.h"
#include "zero3d/engine/zero/fetch_plan.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/shard_home.h"
#include "zero3d/offload/stagger.h"

namespace zero3d {

struct ParameterStoreOptions {
  DType dtype = DType::f32;
  bool shard_parameters = false;  ///< Stage 3: only shards live between uses.
  std::int64_t publish_elements =
      500'000'000;                ///< allgather_bucket_size: updated parameters gathered at a time.
  ShardHomeOptions offload = {};  ///< Of shards, with shard_parameters only.
  /// States lie in host memory, beside which loading takes little of it.
  bool host_holds_states = false;

  /// Units that are not persistent are whole only while they are used.
  bool fetches(const ParamLayout& layout) const {
    return shard_parameters && (layout.shards() > 1 || offload.on());
  }
};

class ParameterStore {
 public:
  /// Everything referred to must outlive the store. Allocates shards and whole copies.
  ParameterStore(Device& device, const ParamLayout& layout, ZeroGroups& groups,
                 const ParameterStoreOptions& options, const RankStreams& streams);

  /// Of pinned memory that load() takes while it lasts.
  static std::int64_t staging_elements(const ParamLayout& layout,
                                       const ParameterStoreOptions& options);
  /// Fills this rank's shards from `source`, then the whole copies; of the units that `wanted`
  /// takes, if given, the same on all ranks. Collective; blocks the host. Not within a step;
  /// end_step() follows where one has been.
  void load(const ParameterSource& source, const std::function<bool(int unit)>& wanted = {});

  /// Allocates the arena that gathers by plan lie in.
  void resize_arena(std::int64_t elements);
  /// The operations of `plan` are about to come, micro-batches counted from `first_micro_batch`. It
  /// must stay until the next pass begins.
  void begin_pass(const FetchPlan& plan, int first_micro_batch);
  /// Views of the parameters of the operation's block in declared order, whole, for its compute
  /// work.
  std::vector<ConstView> acquire(const Op& op);
  /// The compute work of the operation acquired last is enqueued: what the plan releases there may
  /// be overwritten after it.
  void release(const Op& op);

  /// Whether shards lie in memory, where shard() gives them; on drives read_shard() and
  /// update_shard() alone reach them.
  bool shard_in_memory() const { return options_.offload.to.device != OffloadDevice::nvme; }
  /// This rank's shard of a unit, in the store's dtype: what the optimizer updates or writes its
  /// copy to. Throws Error(kInvalid) for one on a drive.
  View shard(int unit);
  /// Where shard() lies.
  Tier shard_tier() const { return home_ ? options_.offload.to.tier() : Tier::device; }
  /// Work on `writer` is about to write shards: it waits for the gathers that read them, also for
  /// those that nobody has waited for by acquiring their unit.
  void begin_step(Stream& writer);
  /// Elements [begin, begin + numel) of this rank's shard become `values`, host or device memory,
  /// once `ready` is passed, which comes after begin_step(). Returns the point from which `values`
  /// may change, for publish() too. Ranges of whole pages of 4 KiB (up to the shard's end) cost a
  /// drive no read.
  Event update_shard(int unit, std::int64_t begin, const ConstView& values, const Event& ready);
  /// Copies the shard's elements from `begin` on to `target`, host or device memory, once `ready`
  /// is passed. Returns the point where they are there, which later writes of them must come after.
  /// Of a rank that offloads.
  Event read_shard(int unit, std::int64_t begin, const View& target, const Event& ready);
  /// This rank's shard is written at `written`: brings the whole copy, if one is kept, up to date.
  void publish(int unit, const Event& written);
  /// All shards are updated: gathers what is still to be published; secondary copies are stale.
  void end_step();

  /// The whole padded unit on every rank, in pinned host memory; collective, host-blocking. For
  /// exports and scoped access, never within a step.
  Tensor whole_copy(int unit);
  /// The same while `use` runs.
  void with_whole(int unit, const std::function<void(View whole)>& use);
  /// Shards and kept copies of all ranks of `replicas` (a communicator of the compute stream)
  /// become the `values` that rank `writer` gives in this device's host memory. Collective,
  /// host-blocking.
  void store_whole(int unit, const ConstView& values, Communicator& replicas, int writer);

  /// Shards and whole copies that lie on the device go to memory of `tier`, or come back, between
  /// passes; elsewhere than on the device the arena is given up. Blocks the host. Throws
  /// OutOfMemory, with part of it moved.
  void move_to(Tier tier);

  /// Of the drives that hold shards, and how long the compute stream waited for parameters, where
  /// anything is offloaded.
  IoCounters counters() const { return home_ ? home_->counters() : IoCounters{}; }
  double wait_seconds() const { return clock_.seconds(); }

  /// Which shard of every unit this rank owns.
  int shard_rank() const { return groups_.gather->rank(); }

 private:
  struct UnitState {
    StaggeredTensor whole;  ///< Kept whole copy (padded), or undefined.
    /// Own shard on the device, when no whole copy is kept, or a persistent unit's source.
    StaggeredTensor shard;
    Tensor secondary;  ///< hpZ: own piece of the secondary copy.
    bool secondary_valid = false;
    Tier tier = Tier::device;  ///< Of whole and shard.
    View gathered;             ///< In the arena or on demand while acquired.
    Tensor on_demand;
    bool live = false;
    Event ready;    ///< The gather that filled `whole` or `gathered`.
    Event updated;  ///< The last write of the shard.
  };
  bool gathers(int unit) const {
    return options_.fetches(layout_) && !layout_.unit(unit).persistent;
  }
  UnitState& state(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  View whole_view(int unit);
  void allocate_secondary(int unit);
  View room_for_whole(int unit, Stream& stream, Tensor& own);
  View own_piece(int unit, const View& whole) const;
  Stream& first_writer(int unit);
  ConstView bring(int unit, const View& whole);
  void load_units(const ParameterSource& source, const std::function<bool(int unit)>& wanted);
  void settle() noexcept;
  Event load_shard(const ParameterSource& source, int unit, const View& staging);
  void synchronize();
  void gather_published();
  void issue_gather(int unit, const View& target);
  void gather_on_demand(int unit);
  void give_up(int unit);
  bool comes_next(const Op& op);
  void depart_from_plan(const Op& op);

  Device& device_;
  const ParamLayout& layout_;
  ZeroGroups& groups_;
  ParameterStoreOptions options_;
  Stream& compute_;
  Stream& gather_;
  // Null where nothing is offloaded.
  Stream* copy_in_;
  Stream* copy_out_;
  std::unique_ptr<ShardHome> home_;  ///< Null where shards lie on the device.
  WaitClock clock_;
  std::vector<UnitState> units_;
  std::vector<int> published_;  ///< Units whose whole copies wait for the next gather.
  std::int64_t published_elements_ = 0;
  const FetchPlan* plan_ = nullptr;
  FencedArena arena_;
  std::int64_t arena_elements_ = 0;  ///< As planned, also while it is given up.
  std::vector<std::pair<std::int64_t, std::int64_t>>
      placed_;  ///< Per unit: its range of the arena while live by plan.
  bool follows_plan_ = false;
  bool warned_departure_ = false;
  int first_micro_batch_ = 0;
  std::size_t position_ = 0;  ///< In the plan: of the operation acquired last.
  std::size_t next_ = 0;      ///< The first operation not acquired yet.
};

}  // namespace zero3d
