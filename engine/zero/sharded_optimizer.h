// One optimizer step over this rank's shards, tile by tile: state in, update, state out, and each
// unit's parameters published as soon as its last tile is updated.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/model_part.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/engine/zero/state_store.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

struct ShardedOptimizerOptions {
  std::int64_t tile_elements =
      1'000'000'000;  ///< sub_group_size, rounded up to a multiple of 1,024; 0: one unit a tile.
  DType master_dtype = DType::f32;
  DType moment_dtype = DType::f32;  ///< Of the states that may be 16-bit.
};

class ShardedOptimizer {
 public:
  ShardedOptimizer(Device& device, const ParamLayout& layout, const ModelPart& part,
                   ParameterStore& parameters, const OptimizerSetup& setup,
                   const ShardedOptimizerOptions& options, Stream& compute);

  ~ShardedOptimizer();

  /// Masters from the training parameters; called once, after they are loaded.
  void initialise_masters();
  /// The same for one parameter that was written from outside.
  void refresh_master(int parameter);
  /// Enqueues the update of every trainable unit, in forward order. `groups` holds the settings of
  /// each optimizer group.
  void step(GradientReducer& gradients, const std::vector<GroupSettings>& groups,
            const StepContext& context);

  /// What a rule sees of a tile, for work on `stream`: master, reduced gradient, states, and the
  /// parameter to write to.
  UpdateSlice fetch(Stream& stream, const Tile& tile, GradientReducer& gradients);
  void commit(Stream& stream, const Tile& tile) { states_->commit(stream, tile); }

  StateStore& states() { return *states_; }
  /// The tiles of a step, in order: a pure function of layout and options.
  const std::vector<Tile>& tiles() const { return tiles_; }
  bool has_masters() const { return options_.master_dtype != parameters_.dtype(); }

 private:
  void master_from_parameter(const Tile& tile);

  Device& device_;
  const ParamLayout& layout_;
  ParameterStore& parameters_;
  const OptimizerSetup& setup_;
  ShardedOptimizerOptions options_;
  Stream& compute_;
  std::vector<Tile> tiles_;
  std::unique_ptr<StateStore> states_;
  std::unique_ptr<class TensorNormStep> tensor_norms_;
};

/// Cuts the shards of all trainable units into tiles of at most `tile_elements`.
std::vector<Tile> plan_tiles(const ParamLayout& layout, std::int64_t tile_elements);

}  // namespace zero3d
