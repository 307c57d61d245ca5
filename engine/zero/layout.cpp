#include "zero3d/engine/zero/layout.h"

#include <algorithm>
#include <unordered_map>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

bool belongs(const Unit& unit, const LayoutParameter& parameter) {
  return unit.stages.empty() && parameter.stages.empty() && unit.parts == parameter.parts &&
         unit.frozen == parameter.spec.frozen && unit.persistent == parameter.persistent &&
         unit.group == parameter.group && unit.holders == parameter.placement.holders &&
         unit.sums_holders == parameter.sums_holders &&
         unit.length + round_up(parameter.numel(), ParamLayout::kAlignment) <=
             ParamLayout::kMaxUnitElements;
}

/// Holds what `block` declares to what an earlier block declared under that name.
void require_alike(const LayoutParameter& known, const ParameterSpec& spec, int block) {
  const auto require_same = [&](bool same, const char* what, const std::string& first,
                                const std::string& second) {
    if (same) return;
    throw_invalid(concat("blocks ", known.blocks.front(), " and ", block, " declare ", spec.name,
                         " with different ", what, ", ", first, " and ", second,
                         "; a tied parameter is one, declared alike in every block"));
  };
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  const auto text = [](const TensorParallelSplit& split) {
    return split.dim < 0 ? "none" : concat("of dimension ", split.dim);
  };
  const ParameterSpec& first = known.spec;
  require_same(first.shape == spec.shape, "shapes", to_string(first.shape), to_string(spec.shape));
  require_same(first.frozen == spec.frozen, "frozen", flag(first.frozen), flag(spec.frozen));
  require_same(first.decay == spec.decay, "decay", flag(first.decay), flag(spec.decay));
  require_same(first.split == spec.split, "splits", text(first.split), text(spec.split));
}

/// Pieces of one name are parameters of their own.
std::string key_of(const ParameterSpec& spec) {
  const ParameterPiece& piece = spec.piece;
  return piece.whole() ? spec.name
                       : concat(spec.name, '\n', piece.dim, '\n', piece.first, '\n', piece.count);
}

/// `pieces` (of `parameters`) of what `whole` is the first of, by their first positions.
void require_cover(const ParameterSpec& whole, const std::vector<int>& pieces,
                   const std::vector<LayoutParameter>& parameters) {
  const int dim = whole.piece.dim;
  std::int64_t covered = 0;
  bool good = dim >= 0 && dim < whole.shape.rank();
  for (const int index : pieces) {
    const ParameterPiece& piece = parameters[static_cast<std::size_t>(index)].spec.piece;
    good = good && piece.dim == dim && piece.first == covered && piece.count > 0;
    covered += piece.count;
  }
  if (good && covered == whole.shape[dim]) return;
  throw_invalid(concat("the pieces that blocks declare of ", whole.name, ", of shape ",
                       to_string(whole.shape),
                       ", do not make it up: cut it along one dim into pieces that follow each "
                       "other, alike in every block that uses it"));
}

}  // namespace

ParamLayout::ParamLayout(const std::vector<std::vector<ParameterSpec>>& blocks,
                         const LayoutOptions& options)
    : shards_(options.shards),
      placement_(options.placement),
      block_parameters_(blocks.size()),
      block_units_(blocks.size()) {
  if (shards_ < 1) throw_invalid(concat("a layout needs at least one shard, not ", shards_));
  count_parts(blocks);
  declare(blocks, options);
  order_pieces();
  choose_persistent(options);
  form_units();
}

bool LayoutParameter::used_in(int part) const {
  return std::binary_search(parts.begin(), parts.end(), part);
}

void ParamLayout::count_parts(const std::vector<std::vector<ParameterSpec>>& blocks) {
  int parts = 0;
  for (const std::vector<ParameterSpec>& block : blocks) {
    first_part_.push_back(parts);
    int tiles = 1;
    for (const ParameterSpec& spec : block) tiles = std::max(tiles, spec.tile + 1);
    parts += tiles;
  }
  first_part_.push_back(parts);
  part_units_.resize(static_cast<std::size_t>(parts));
}

std::vector<int> ParamLayout::tiles() const {
  std::vector<int> result;
  for (int block = 0; block < block_count(); ++block) result.push_back(tiles(block));
  return result;
}

void ParamLayout::declare(const std::vector<std::vector<ParameterSpec>>& blocks,
                          const LayoutOptions& options) {
  std::unordered_map<std::string, int> known;
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    const auto block = static_cast<int>(index);
    for (const ParameterSpec& spec : blocks[index]) {
      const auto [entry, added] =
          known.try_emplace(key_of(spec), static_cast<int>(parameters_.size()));
      if (added) add(spec, options);
      LayoutParameter& parameter = parameters_[static_cast<std::size_t>(entry->second)];
      if (!added && parameter.blocks.back() == block)
        throw_invalid(concat("block ", block, " declares the parameter ", spec.name,
                             " twice; declare it once and use it in both places"));
      if (!added) require_alike(parameter, spec, block);
      parameter.blocks.push_back(block);
      const int first = part(block, std::max(spec.tile, 0));
      const int last = spec.tile == kEveryTile ? part(block + 1) - 1 : first;
      for (int number = first; number <= last; ++number) parameter.parts.push_back(number);
      block_parameters_[index].push_back(entry->second);
    }
  }
}

void ParamLayout::add(const ParameterSpec& spec, const LayoutOptions& options) {
  const auto index = static_cast<int>(parameters_.size());
  const auto [entry, first] = whole_of_.try_emplace(spec.name, static_cast<int>(wholes_.size()));
  if (first) wholes_.emplace_back();
  LayoutParameter parameter;
  parameter.spec = spec;
  parameter.whole = entry->second;
  if (options.stages_of) parameter.stages = options.stages_of(spec);
  if (parameter.stages.size() < 2) parameter.stages.clear();
  PlacementOptions placement = options.placement;
  placement.copy |= !parameter.stages.empty() && parameter.stages.front() != options.stage;
  parameter.placement = place_parameter(spec, placement);
  parameter.sums_holders =
      parameter.placement.holders > 1 &&
      (spec.shared_gradient == SharedGradient::of_heads ||
       (spec.shared_gradient == SharedGradient::of_rows && options.splits_sequence));
  parameter.group = options.group_of ? options.group_of(spec) : 0;
  parameters_.push_back(std::move(parameter));
  wholes_[static_cast<std::size_t>(entry->second)].push_back(index);
}

void ParamLayout::order_pieces() {
  for (std::vector<int>& pieces : wholes_) {
    const LayoutParameter& first = parameter(pieces.front());
    if (pieces.size() == 1 && first.spec.piece.whole()) continue;
    for (const int piece : pieces)
      require_alike(first, parameter(piece).spec, parameter(piece).blocks.front());
    std::sort(pieces.begin(), pieces.end(), [this](int a, int b) {
      return parameter(a).spec.piece.first < parameter(b).spec.piece.first;
    });
    require_cover(first.spec, pieces, parameters_);
  }
}

void ParamLayout::choose_persistent(const LayoutOptions& options) {
  if (!options.persistence) return;
  std::int64_t total = 0;
  // In order; one that does not fit is passed over, the scan goes on. Pieces follow their whole.
  for (const std::vector<int>& pieces : wholes_) {
    std::int64_t numel = 0;
    for (const int piece : pieces) numel += parameter(piece).numel();
    if (numel > options.param_persistence_threshold ||
        numel > options.model_persistence_threshold - total)
      continue;
    for (const int piece : pieces) parameters_[static_cast<std::size_t>(piece)].persistent = true;
    total += numel;
  }
}

void ParamLayout::form_units() {
  std::vector<std::vector<int>> candidates(part_units_.size());  // units by their first part
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    LayoutParameter& parameter = parameters_[index];
    auto& open = candidates[static_cast<std::size_t>(parameter.parts.front())];
    const auto found =
        std::find_if(open.begin(), open.end(), [&](int u) { return belongs(unit(u), parameter); });
    if (found == open.end()) {
      parameter.unit = unit_count();
      open.push_back(parameter.unit);
      Unit unit;
      unit.name = parameter.spec.name;
      unit.blocks = parameter.blocks;
      unit.parts = parameter.parts;
      unit.group = parameter.group;
      unit.frozen = parameter.spec.frozen;
      unit.persistent = parameter.persistent;
      unit.holders = parameter.placement.holders;
      unit.owned = parameter.placement.owned;
      unit.stages = parameter.stages;
      unit.sums_holders = parameter.sums_holders;
      units_.push_back(std::move(unit));
    } else {
      parameter.unit = *found;
    }
    Unit& unit = units_[static_cast<std::size_t>(parameter.unit)];
    parameter.offset = unit.length;
    unit.parameters.push_back(static_cast<int>(index));
    unit.length += round_up(parameter.numel(), kAlignment);
  }
  for (int index = 0; index < unit_count(); ++index) {
    Unit& unit = units_[static_cast<std::size_t>(index)];
    unit.shard = round_up(ceil_div<std::int64_t>(unit.length, shards_), kAlignment);
    unit.padded = unit.shard * shards_;
    for (int block : unit.blocks) block_units_[static_cast<std::size_t>(block)].push_back(index);
    for (int part : unit.parts) part_units_[static_cast<std::size_t>(part)].push_back(index);
    find_gaps(unit);
  }
}

int ParamLayout::find(const std::string& name) const {
  const auto found = whole_of_.find(name);
  return found == whole_of_.end() ? -1 : wholes_[static_cast<std::size_t>(found->second)].front();
}

std::vector<ParameterSpec> ParamLayout::whole_parameters() const {
  std::vector<ParameterSpec> specs;
  for (const std::vector<int>& pieces : wholes_) {
    ParameterSpec& spec = specs.emplace_back(parameter(pieces.front()).spec);
    spec.piece = {};
    spec.tile = kEveryTile;
  }
  return specs;
}

std::vector<ParameterRun> ParamLayout::runs(int unit_index, std::int64_t begin,
                                            std::int64_t count) const {
  std::vector<ParameterRun> result;
  for (int index : unit(unit_index).parameters) {
    const LayoutParameter& p = parameter(index);
    const std::int64_t first = std::max(begin, p.offset);
    const std::int64_t last = std::min(begin + count, p.offset + p.numel());
    if (first < last) result.push_back({index, first - p.offset, last - first, first - begin});
  }
  return result;
}

void ParamLayout::find_gaps(const Unit& unit) {
  std::vector<std::pair<std::int64_t, std::int64_t>>& gaps = gaps_.emplace_back();
  std::int64_t covered = 0;
  for (int index : unit.parameters) {
    const LayoutParameter& p = parameter(index);
    if (covered < p.offset) gaps.emplace_back(covered, p.offset);
    if (!p.placement.whole()) {
      for (const auto& [begin, end] : padding_of(p.placement))
        gaps.emplace_back(p.offset + begin, p.offset + end);
    }
    covered = p.offset + p.numel();
  }
  if (covered < unit.padded) gaps.emplace_back(covered, unit.padded);
}

std::int64_t ParamLayout::numel() const {
  std::int64_t total = 0;
  for (const std::vector<int>& pieces : wholes_)
    total += parameter(pieces.front()).spec.shape.numel();
  return total;
}

std::int64_t ParamLayout::padded() const {
  std::int64_t total = 0;
  for (const Unit& unit : units_) total += unit.padded;
  return total;
}

}  // namespace zero3d
