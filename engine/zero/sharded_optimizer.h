// One optimizer step over this rank's shards: the loop that follows an UpdatePlan. Each tile's
// state comes through the window of its unit's lane, on the device or on the host, goes through its
// phase, and is let go; each unit's parameters are published as soon as they are final.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/zero/delayed_updates.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/matrix_transform.h"
#include "zero3d/engine/zero/model_part.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/engine/zero/tensor_norm_step.h"
#include "zero3d/engine/zero/update_inputs.h"
#include "zero3d/engine/zero/update_lane.h"
#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/offload/offload_settings.h"
#include "zero3d/offload/state_store.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct ShardedOptimizerOptions {
  std::int64_t tile_elements = 1'000'000'000;  ///< 0: one unit a tile.
  DType parameter_dtype = DType::f32;
  DType master_dtype = DType::f32;  ///< A master is kept where this is another dtype.
  DType moment_dtype = DType::f32;  ///< Of the states that may be 16-bit.
  StateStoreFactory store = make_device_state_store;  ///< Of units updated on the device.
  std::vector<bool> offloaded;    ///< By unit: updated on the host. Empty: none is.
  StateStoreFactory host_store;   ///< Of those.
  Tier host_tier = Tier::pinned;  ///< Of their other memory.
  OffloadDevice parameters = OffloadDevice::none;  ///< Where shards lie between uses.
  DelayedUpdateOptions delayed;                    ///< Of the offloaded units, where settings.on().

  bool offloads(int unit) const {
    return !offloaded.empty() && offloaded[static_cast<std::size_t>(unit)];
  }
  bool offloads() const {
    return std::find(offloaded.begin(), offloaded.end(), true) != offloaded.end();
  }
  /// Whether the unit's parameters lie in the memory in which it is updated.
  bool in_place(int unit) const {
    return parameters == (offloads(unit) ? OffloadDevice::cpu : OffloadDevice::none);
  }
  /// A master is kept where the parameter is of another dtype, or elsewhere.
  bool has_master(int unit) const { return master_dtype != parameter_dtype || !in_place(unit); }
};

/// How the state of each unit lies: the master if one is kept, the rule's states, and the direction
/// of a rule that needs tensor norms.
std::vector<RecordLayout> plan_records(const ParamLayout& layout, const OptimizerSetup& setup,
                                       const ShardedOptimizerOptions& options);

class ShardedOptimizer {
 public:
  /// Initial states, and masters from the training parameters, which are loaded.
  ShardedOptimizer(Device& device, const ParamLayout& layout, const ModelPart& part,
                   ZeroGroups& groups, ParameterStore& parameters, const OptimizerSetup& setup,
                   const ShardedOptimizerOptions& options, const RankStreams& streams);

  /// Whether gradients must be transformed before the norm that clips them.
  bool transforms() const { return !plan_.transform.empty(); }
  /// Enqueues that, before later work on the compute stream. The host has waited for the step's
  /// report, and so for all that wrote the gradients.
  void transform(const UpdateInputs& inputs);
  /// Backward of the last micro-batch begins: the first tiles may be brought meanwhile.
  void read_ahead(GradientReducer& gradients);
  /// Whether update_early() may be called for offloaded units: each is updated at once.
  bool updates_units_alone() const;
  /// Enqueues the update of an offloaded unit whose gradient is enqueued; update() follows.
  void update_early(int unit, const UpdateInputs& inputs);
  /// Enqueues the update of every trainable unit that is still to be updated, in forward order.
  void update(const UpdateInputs& inputs);

  /// Whether delayed updates wait for the end of their round, or their parameters do to take
  /// effect.
  bool pending() const { return delayed_ != nullptr && delayed_->pending(); }
  /// Between steps: those take effect now.
  void flush();
  /// Of the last update(), where updates are delayed.
  std::optional<UpdateUse> update_use() const;

  /// Of the drives that hold state, and how long the host's update waited for tiles.
  IoCounters counters() const;
  double wait_seconds() const { return lanes_[1].clock ? lanes_[1].clock->seconds() : 0; }
  /// All state, by runs of one parameter, to be read or written by work that `visit` enqueues on
  /// the stream it is given, or by the host once it has waited for that.
  void for_each_slice(const std::function<void(const StateSlice&, Stream&)>& visit);
  /// State that lies on the device goes to memory of `tier`, or comes back, between steps; as
  /// StateStore::move_to.
  void move_states(Tier tier);
  /// The same tile by tile, for units that `wanted` takes; the slices of a tile are of one
  /// parameter each and ascend. Their padding, which is in none, stays as it is.
  /// With `changes` off, `visit` only reads.
  void for_each_tile(
      bool changes, const std::function<bool(int unit)>& wanted,
      const std::function<void(const Tile&, std::span<const StateSlice>, Stream&)>& visit);
  /// Of a unit whose state lies on drives, whole records of it: StateStore's, for `target` of
  /// snapshot_bytes(). What they hold once the event is passed: snapshot_slices().
  Event snapshot(const Tile& tile, const View& target, const Event& free) {
    return lane(tile.unit).store->snapshot(tile, target, free);
  }
  std::int64_t snapshot_bytes(const Tile& tile) const;
  std::vector<StateSlice> snapshot_slices(const Tile& tile, const View& bytes) const {
    return parameter_slices(tile, bytes);
  }
  /// Whether a unit's state lies there.
  bool on_drives(int unit) const { return lanes_[lane_of(unit)].store->on_drives(); }
  /// Whose work updates a unit's parameters where they lie.
  Stream& stream_of(int unit) { return *lane(unit).stream; }
  bool has_master(int unit) const { return options_.has_master(unit); }
  /// The master of one parameter that was written from outside.
  void refresh_master(int parameter);

 private:
  static constexpr std::size_t kLanes = 2;  ///< Device and host.
  using Walks = std::array<std::unique_ptr<LaneWalk>, kLanes>;
  std::size_t lane_of(int unit) const { return options_.offloads(unit) ? 1 : 0; }
  UpdateLane& lane(int unit) { return lanes_[lane_of(unit)]; }
  /// One for each lane, over its part of the tiles.
  Walks walks(std::span<const Tile> tiles, Stream& device_stream, OffloadedGradients* gradients,
              bool gradients_ahead = true);
  void drop_ahead();
  void begin_step();
  std::vector<UpdateStep> steps_of_device() const;
  std::vector<RecordLayout> records_of_lane(std::size_t index) const;
  void make_lanes(const RankStreams& streams);
  void initialise();
  void walk(std::span<const Tile> tiles,
            const std::function<void(const Tile&, const View&, Stream&)>& visit,
            bool changes = true);
  void run(const std::vector<UpdateStep>& steps, Walks walks, Stream& device_stream,
           const UpdateInputs& inputs, float gradient_factor);
  void run_phase(const UpdateStep& step, const RuleCall& call, const LaneWalk* walk,
                 const UpdateInputs& inputs);
  void finish(const UpdateStep& step, const RuleCall& call, std::span<const StateSlice> states,
              std::vector<UpdateSlice> slices);
  void publish(int unit, Stream& stream);
  std::vector<StateSlice> slices(const Tile& tile, const View& bytes) const;
  std::vector<StateSlice> parameter_slices(const Tile& tile, const View& bytes) const;
  void add_slices(const Tile& tile, const View& bytes, const StateSlice& range,
                  std::vector<StateSlice>& slices) const;
  std::vector<UpdateSlice> update_slices(const Tile& tile, const std::vector<StateSlice>& states,
                                         const LaneWalk& walk, GradientReducer& gradients) const;
  void masters_from_parameters(const Tile& tile, std::span<const StateSlice> slices,
                               Stream& stream);

  Device& device_;
  const ParamLayout& layout_;
  ParameterStore& parameters_;
  const OptimizerSetup& setup_;
  ShardedOptimizerOptions options_;
  Stream& compute_;
  Stream& reduce_;  ///< Of groups.shard.
  std::vector<RecordLayout> records_;
  std::vector<Tile> tiles_;
  UpdatePlan plan_;
  std::array<std::vector<RecordLayout>, kLanes> lane_records_;
  std::array<UpdateLane, kLanes> lanes_;
  Walks ahead_;              ///< Of the next update, its first tiles on their way; or null.
  std::vector<bool> early_;  ///< By unit: updated before the step; empty: none yet.
  std::unique_ptr<DelayedUpdates> delayed_;  ///< Null where none are.
  TensorNormStep tensor_norms_;
  MatrixTransform matrices_;
};

}  // namespace zero3d
