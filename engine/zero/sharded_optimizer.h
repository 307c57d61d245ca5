// One optimizer step over this rank's shards: the loop that follows an UpdatePlan. Each tile's
// state comes through a TileWindow, goes through its phase, and is let go; each unit's parameters
// are published as soon as they are final.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/matrix_transform.h"
#include "zero3d/engine/zero/model_part.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/engine/zero/tensor_norm_step.h"
#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/offload/state_store.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct ShardedOptimizerOptions {
  std::int64_t tile_elements = 1'000'000'000;  ///< 0: one unit a tile.
  DType parameter_dtype = DType::f32;
  DType master_dtype = DType::f32;  ///< A master is kept where this is another dtype.
  DType moment_dtype = DType::f32;  ///< Of the states that may be 16-bit.
  StateStoreFactory store = make_device_state_store;

  bool has_masters() const { return master_dtype != parameter_dtype; }
};

/// How the state of each unit lies: the master if one is kept, the rule's states, and the direction
/// of a rule that needs tensor norms.
std::vector<RecordLayout> plan_records(const ParamLayout& layout, const OptimizerSetup& setup,
                                       const ShardedOptimizerOptions& options);

/// What a step updates with.
struct UpdateInputs {
  GradientReducer& gradients;
  const std::vector<GroupSettings>& groups;  ///< The settings of each optimizer group.
  std::int64_t step = 1;                     ///< The number of this applied step.
  double loss_scale = 1;                     ///< Still in the gradients.
  float gradient_factor = 1;                 ///< Unscales and clips them.
};

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
  /// Enqueues the update of every trainable unit, in forward order.
  void update(const UpdateInputs& inputs);

  /// All state, by runs of one parameter, to be read or written by work on the compute stream that
  /// `visit` enqueues, or by the host once it has waited for that stream.
  void for_each_slice(const std::function<void(const StateSlice&)>& visit);
  /// The master of one parameter that was written from outside.
  void refresh_master(int parameter);

 private:
  void initialise();
  void walk(std::vector<Tile> tiles, const std::function<void(const Tile&, const View&)>& visit);
  void run(const std::vector<UpdateStep>& steps, Stream& stream, const UpdateInputs& inputs,
           float gradient_factor);
  std::vector<StateSlice> slices(const Tile& tile, const View& bytes) const;
  std::vector<StateSlice> parameter_slices(const Tile& tile, const View& bytes) const;
  void add_slices(const Tile& tile, const View& bytes, const StateSlice& range,
                  std::vector<StateSlice>& slices) const;
  std::vector<UpdateSlice> update_slices(const std::vector<StateSlice>& states,
                                         GradientReducer& gradients) const;
  void master_from_parameter(const StateSlice& slice);

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
  std::unique_ptr<StateStore> store_;
  TensorNormStep tensor_norms_;
  MatrixTransform matrices_;
};

}  // namespace zero3d
