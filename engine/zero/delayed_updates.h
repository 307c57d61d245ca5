// The update of units whose state lies in host memory, at two paces (DelayedUpdateSettings): the
// chosen blocks of ParamLayout::kAlignment elements on the device at every step, where their
// masters and states are while they are chosen; the rest on the host at the end of a round, with
// the mean of its steps' gradients, each unscaled and clipped as its own step says.
//
// Every block has one master and one set of states, which move with it, and counts its updates,
// which correct its bias: with rounds of one step nothing is different from an update of all at
// once, to the bit. Without overlap the rest is updated within the step that ends the round. With
// it the update runs beside the next round, at whose end the parameters take effect: at that step,
// whatever the time it took. Used from one host thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "zero3d/engine/delayed_update_settings.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/rank_streams.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/offloaded_gradients.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/engine/zero/update_inputs.h"
#include "zero3d/engine/zero/update_lane.h"

namespace zero3d {

struct DelayedUpdateOptions {
  DelayedUpdateSettings settings;
  std::vector<bool> offloaded;        ///< By unit: it is updated here.
  Tier host_tier = Tier::pinned;      ///< Of gradients that wait.
  DType gradient_dtype = DType::f32;  ///< Of reduced gradients.
};

class DelayedUpdates {
 public:
  /// `states`: the host lane's records, a master and the rule's states. The referred objects must
  /// outlive this.
  DelayedUpdates(Device& device, const ParamLayout& layout, ParameterStore& parameters,
                 const OptimizerSetup& setup, const DelayedUpdateOptions& options,
                 const std::vector<RecordLayout>& states, UpdateLane& host,
                 const RankStreams& streams);

  /// Enqueues the step's part of the updates and publishes its units, between the parameter store's
  /// begin_step() of the device's and the host's stream and its end_step(). The host has waited for
  /// the step's report.
  void update(const UpdateInputs& inputs);
  /// Whether gradients wait, or updated parameters have not taken effect: the same on every rank.
  bool pending() const { return waiting_ > 0 || unsent_; }
  /// Ends the round here: what waits is updated, with the settings of the last step, and all
  /// parameters take effect. As update().
  void flush();

  /// What the last update() did.
  const UpdateUse& use() const { return use_; }
  /// For work on the host's records that streams or the host enqueue between steps: the chosen
  /// blocks' states are there from bring_home() on; take_again() makes what is there theirs.
  void bring_home() { move_chosen(true); }
  void take_again() { move_chosen(false); }
  /// What the device holds goes to memory of `tier`, or comes back: StateStore::move_to.
  void move_states(Tier tier) { chosen_store_->move_to(compute_, tier); }

  /// Records of the chosen blocks on the device, and of the gradients that wait on the host, of
  /// which there are pending_sets().
  static std::vector<RecordLayout> plan_chosen(const ParamLayout& layout,
                                               const DelayedUpdateOptions& options,
                                               const std::vector<RecordLayout>& states);
  static std::vector<RecordLayout> plan_pending(const DelayedUpdateOptions& options,
                                                const std::vector<RecordLayout>& states);
  static int pending_sets(const DelayedUpdateSettings& settings) {
    return settings.overlap ? 2 : 1;
  }
  /// Device bytes beside the records.
  static std::int64_t staging_bytes(const std::vector<RecordLayout>& chosen, DType gradient_dtype);

 private:
  static constexpr std::size_t kStaged = 2;
  /// Gradients of a unit's chosen blocks on the device.
  struct Staged {
    Tensor bytes;
    Event copied;
    Event free;
  };
  struct Unit {
    int index = 0;
    std::vector<std::int64_t> chosen;   ///< Blocks of the shard, ascending.
    std::vector<bool> is_chosen;        ///< By block.
    std::vector<std::int64_t> updates;  ///< By block: so many there were.
  };
  /// Neighbouring blocks of as many updates, each list of them in one record.
  struct Run {
    std::int64_t place = 0;  ///< Of the first, among the chosen; in elements, as the others.
    std::int64_t begin = 0;  ///< In the shard.
    std::int64_t count = 0;
    std::int64_t updates = 0;
  };
  /// By the number of the update that they are due.
  using Batches = std::map<std::int64_t, std::vector<UpdateSlice>>;

  const RecordLayout& states(const Unit& unit) const {
    return states_[static_cast<std::size_t>(unit.index)];
  }
  const RecordLayout& chosen(const Unit& unit) const {
    return chosen_records_[static_cast<std::size_t>(unit.index)];
  }
  static View open(StateStore& store, int unit, const RecordLayout& records, Stream& stream);
  static void close(StateStore& store, int unit, const RecordLayout& records, Stream& stream,
                    bool changed = true);
  std::vector<Run> chosen_runs(const Unit& unit) const;
  std::vector<Run> rest_runs(const Unit& unit, std::int64_t begin, std::int64_t count) const;
  static UpdateSlice slice_of(const RecordLayout& records, const View& bytes, std::int64_t begin,
                              std::int64_t count);
  void run(Stream& stream, const Unit& unit, float factor, const Batches& batches) const;
  void select(OffloadedGradients& gradients);
  void move_chosen(bool home);
  void stage(const Unit& unit, OffloadedGradients& gradients, Staged& staged);
  void accumulate(const Unit& unit, OffloadedGradients& gradients, float factor);
  void update_chosen(Unit& unit, float factor, Staged& staged);
  void update_rest(Unit& unit, Stream& stream, float factor, bool sends);
  void send(const Unit& unit, Stream& stream);
  void send_record(const Unit& unit, Stream& stream, const View& bytes, std::int64_t begin,
                   std::int64_t count);
  void publish(const Unit& unit);

  Device& device_;
  const ParamLayout& layout_;
  ParameterStore& parameters_;
  const OptimizerSetup& setup_;
  const DelayedUpdateOptions options_;
  const std::vector<RecordLayout>& states_;
  UpdateLane& host_;
  Stream& compute_;
  Stream& copy_in_;
  Stream& copy_out_;
  Stream* late_;  ///< Null without overlap.
  const std::vector<RecordLayout> chosen_records_;
  const std::vector<RecordLayout> pending_records_;
  std::vector<Unit> units_;  ///< Of those that are updated here.
  std::unique_ptr<StateStore> chosen_store_;
  std::vector<std::unique_ptr<StateStore>> pending_;
  std::array<Staged, kStaged> staged_;
  std::size_t next_staged_ = 0;
  std::size_t set_ = 0;                ///< Of pending_, to which steps add.
  std::int64_t waiting_ = 0;           ///< Steps in it.
  bool unsent_ = false;                ///< Masters are ahead of the parameters.
  std::vector<GroupSettings> groups_;  ///< Of the last step.
  UpdateUse use_;
};

}  // namespace zero3d
