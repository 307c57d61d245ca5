// Where every parameter lies: what of it is on this rank (placement.h), flat units of that (what is
// acquired together), the offsets inside them, and each rank's shard. A pure function of the
// declared parameters and the options; names, shapes and this map are all a checkpoint needs.
//
// A unit holds the parameters of one block that share tie, frozen, persistence, optimizer group and
// holders; one that other stages of a pipeline hold too is alone in its unit. A block that works in
// tiles has as many parts, numbered through all blocks; a part has units of its own, and a
// parameter that several parts use is tied like one of several blocks.
// Each parameter starts at a multiple of kAlignment elements, and shards are equal multiples of it:
// a block of the gradient norm never crosses a boundary, so no knob that moves boundaries can
// change a result. Gaps and the tail are padding, always zero.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/engine/zero/placement.h"

namespace zero3d {

struct LayoutOptions {
  int shards = 1;            ///< Ranks a unit is cut over.
  bool persistence = false;  ///< Keep small parameters whole on every rank.
  std::int64_t param_persistence_threshold =
      0;  ///< Parameters of at most this many elements persist, ...
  std::int64_t model_persistence_threshold = INT64_MAX;  ///< ... while their sum stays within this.
  /// The optimizer group of a parameter; all in group 0 when empty.
  std::function<int(const ParameterSpec&)> group_of;
  PlacementOptions placement;
  /// The stages of a pipeline that use a parameter, ascending; of this rank alone when empty.
  std::function<std::vector<int>(const ParameterSpec&)> stages_of;
  int stage = 0;                 ///< Of this rank.
  bool splits_sequence = false;  ///< Tensor-parallel ranks have rows of their own: SharedGradient.
};

/// A parameter, or a piece of one: several then have the same name.
struct LayoutParameter {
  ParameterSpec spec;  ///< As it was declared first.
  Placement placement;
  int unit = 0;
  std::int64_t offset = 0;  ///< Of its first element in the unit.
  int group = 0;
  bool persistent = false;
  bool sums_holders = false;
  std::vector<int> blocks;  ///< Blocks that use it, ascending.
  std::vector<int> parts;   ///< Parts that do; more than one: tied.
  int whole = 0;            ///< What it is, or is a piece of: ParamLayout::wholes().
  /// Where it is tied to blocks of other stages: all stages that hold it, ascending. The first owns
  /// it, and it has a unit of its own, laid out alike in all of them.
  std::vector<int> stages;

  bool used_in(int part) const;
  std::int64_t numel() const { return placement.stored.numel(); }  ///< On this rank, with padding.
  /// The stored parameter in a view of its whole unit.
  template <typename V>
  V view_in(const V& unit_view) const {
    return unit_view.flat(offset, numel()).reshaped(placement.stored);
  }
};

struct Unit {
  std::string name;
  std::vector<int> parameters;  ///< In order of offset.
  std::vector<int> blocks;      ///< Blocks that use it, ascending.
  std::vector<int> parts;       ///< Parts that do.
  std::int64_t length = 0;      ///< With the gaps between them.
  std::int64_t shard = 0;       ///< Elements of one rank's shard, a multiple of kAlignment.
  std::int64_t padded = 0;      ///< shard * shards.
  int group = 0;
  bool frozen = false;
  bool persistent = false;
  int holders = 1;            ///< Of each of its parameters, as `owned`: Placement.
  bool sums_holders = false;  ///< What they write as gradients are parts: SharedGradient.
  bool owned = true;
  std::vector<int> stages;  ///< Of its parameter, where other stages hold it too.
};

/// Elements [first, first + count) of a stored parameter lie at `offset` of a range of its unit.
struct ParameterRun {
  int parameter = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;
};

class ParamLayout {
 public:
  static constexpr std::int64_t kAlignment = 1024;  ///< Elements; the block of the gradient norm.
  static constexpr std::int64_t kMaxUnitElements =
      1ll << 26;  ///< Above this a unit is split between parameters.

  /// `blocks[b]` are block b's declared parameters. Throws Error(kInvalid) when two blocks declare
  /// one name differently, one block declares it twice, or pieces do not make up a parameter.
  ParamLayout(const std::vector<std::vector<ParameterSpec>>& blocks, const LayoutOptions& options);

  int shards() const { return shards_; }
  const PlacementOptions& placement() const { return placement_; }
  const std::vector<LayoutParameter>& parameters() const { return parameters_; }
  const std::vector<Unit>& units() const { return units_; }
  int block_count() const { return static_cast<int>(block_parameters_.size()); }
  int unit_count() const { return static_cast<int>(units_.size()); }
  const Unit& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  const LayoutParameter& parameter(int index) const {
    return parameters_[static_cast<std::size_t>(index)];
  }
  /// Of all blocks.
  int part_count() const { return static_cast<int>(part_units_.size()); }
  int part(int block, int tile = 0) const {
    return first_part_[static_cast<std::size_t>(block)] + tile;
  }
  int tiles(int block) const { return part(block + 1) - part(block); }
  /// Of each block.
  std::vector<int> tiles() const;
  /// The units of the parameters that a part uses, each once, ascending.
  const std::vector<int>& part_units(int part) const {
    return part_units_[static_cast<std::size_t>(part)];
  }
  /// Indices into parameters() in the order the block declared them.
  const std::vector<int>& block_parameters(int block) const {
    return block_parameters_[static_cast<std::size_t>(block)];
  }
  /// The units that hold them, each once, ascending.
  const std::vector<int>& block_units(int block) const {
    return block_units_[static_cast<std::size_t>(block)];
  }
  /// The index of a named parameter, -1 when there is none; of its first piece.
  int find(const std::string& name) const;
  /// Every whole parameter in the order of declaration: its pieces, ascending along the cut dim, or
  /// the one that it is.
  const std::vector<std::vector<int>>& wholes() const { return wholes_; }
  const std::vector<int>& pieces_of(int index) const {
    return wholes_[static_cast<std::size_t>(parameter(index).whole)];
  }
  /// The whole ones as they are exported, in order.
  std::vector<ParameterSpec> whole_parameters() const;

  /// What elements [begin, begin + count) of a padded unit hold, in order, a run per parameter: its
  /// own padding is in the run, which global_runs() tells apart, the unit's in none. Offsets count
  /// from `begin`.
  std::vector<ParameterRun> runs(int unit, std::int64_t begin, std::int64_t count) const;
  /// Ranges [begin, end) of the padded unit that are padding, of a parameter or of the unit.
  const std::vector<std::pair<std::int64_t, std::int64_t>>& gaps(int unit) const {
    return gaps_[static_cast<std::size_t>(unit)];
  }

  std::int64_t numel() const;   ///< Of all global parameters, each counted once.
  std::int64_t padded() const;  ///< Of all units with padding.

 private:
  void count_parts(const std::vector<std::vector<ParameterSpec>>& blocks);
  void declare(const std::vector<std::vector<ParameterSpec>>& blocks, const LayoutOptions& options);
  void add(const ParameterSpec& spec, const LayoutOptions& options);
  void order_pieces();
  void choose_persistent(const LayoutOptions& options);
  void form_units();
  void find_gaps(const Unit& unit);

  int shards_;
  PlacementOptions placement_;
  std::vector<LayoutParameter> parameters_;
  std::vector<std::vector<int>> wholes_;
  std::unordered_map<std::string, int> whole_of_;  // by name
  std::vector<Unit> units_;
  std::vector<std::vector<int>> block_parameters_;
  std::vector<std::vector<int>> block_units_;
  std::vector<int> first_part_;  // of each block, and their number
  std::vector<std::vector<int>> part_units_;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> gaps_;  // per unit
};

}  // namespace zero3d
