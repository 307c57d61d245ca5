// The work of an optimizer step over one rank's shards as data: which tile goes through which phase
// of its group's rule, in order. A pure function of layout, rules and tile size; one loop follows
// it (zero/sharded_optimizer).
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/offload/record_layout.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

enum class UpdatePhase {
  blend,          ///< A tile's momentum takes the gradient (Muon).
  orthogonalise,  ///< A unit's matrices are gathered, orthogonalised, and replace the gradient.
  directions,     ///< A tile's states and directions, and their norms' block sums (LAMB).
  norms,          ///< The norms of all such parameters are exchanged.
  apply,          ///< A tile's masters take their directions.
  update          ///< A tile is updated at once.
};

struct UpdateStep {
  UpdatePhase phase = UpdatePhase::update;
  Tile tile;               ///< No elements: the step reads no state.
  int group = 0;           ///< The optimizer group of the tile's unit.
  bool ends_unit = false;  ///< Its unit's parameters are final: the last tile of the unit.
};

struct UpdatePlan {
  std::vector<UpdateStep> transform;  ///< Before the norm that clips; empty without matrix rules.
  std::vector<UpdateStep> update;     ///< After the decision to apply the step, in forward order.
};

/// A run of a unit's shard that lies in one record, and what the optimizer keeps of it.
struct StateSlice {
  int unit = 0;
  std::int64_t begin = 0;  ///< Of its first element in the shard.
  std::int64_t count = 0;
  int parameter = -1;      ///< When it was cut to one parameter: which, ...
  std::int64_t first = 0;  ///< ... and its first element there.
  View master;             ///< Undefined when the training parameter is its own master.
  std::vector<View> states;
  View workspace;  ///< What lives within one step only; undefined when the rule needs none.
};

/// Where the host updates its part of the units.
struct HostUpdates {
  std::vector<bool> units;   ///< By unit: it is one of them. Empty: none is.
  Tier tier = Tier::pinned;  ///< Of what it works on.
  Stream* stream = nullptr;

  bool holds(int unit) const { return !units.empty() && units[static_cast<std::size_t>(unit)]; }
};

/// What every phase of a rule is called with.
struct RuleCall {
  Stream& stream;
  const UpdateRule& rule;
  const GroupSettings& settings;
  const StepContext& context;
};

/// Elements of tiles and of the records that hold their states, both multiples of 1,024.
struct TileSizes {
  std::int64_t tile = 0;  ///< Whole records.
  std::int64_t record = 0;
};
/// For tiles of `elements`, rounded up; 0: one tile a unit.
TileSizes tile_sizes(std::int64_t elements);

/// By unit: whether it is updated on the host. The first units in forward order, as long as
/// together they have no more than (1 - ratio) of the elements, stay on the device; frozen ones are
/// not updated.
std::vector<bool> plan_offload(const ParamLayout& layout, double ratio);

/// Cuts the shards of all trainable units into tiles of at most `tile_elements`.
std::vector<Tile> plan_tiles(const ParamLayout& layout, std::int64_t tile_elements);

/// `needs[g]`: what the rule of optimizer group g needs.
UpdatePlan plan_update(const ParamLayout& layout, const std::vector<RuleNeeds>& needs,
                       std::int64_t tile_elements);

}  // namespace zero3d
