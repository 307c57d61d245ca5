#include "zero3d/engine/zero/layout.h"

#include <algorithm>
#include <unordered_map>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

bool belongs(const Unit& unit, const LayoutParameter& parameter) {
  return unit.stages.empty() && parameter.stages.empty() && unit.blocks == parameter.blocks &&
         unit.frozen == parameter.spec.frozen && unit.persistent == parameter.persistent &&
         unit.group == parameter.group && unit.holders == parameter.placement.holders &&
         unit.sums_holders == parameter.sums_holders &&
         unit.length + round_up(parameter.numel(), ParamLayout::kAlignment) <=
             ParamLayout::kMaxUnitElements;
}

/// Holds what `block` declares to what an earlier block declared under that name.
void require_tied(const LayoutParameter& known, const ParameterSpec& spec, int block) {
  if (known.blocks.back() == block)
    throw_invalid(concat("block ", block, " declares the parameter ", spec.name,
                         " twice; declare it once and use it in both places"));
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

}  // namespace

ParamLayout::ParamLayout(const std::vector<std::vector<ParameterSpec>>& blocks,
                         const LayoutOptions& options)
    : shards_(options.shards),
      placement_(options.placement),
      block_parameters_(blocks.size()),
      block_units_(blocks.size()) {
  if (shards_ < 1) throw_invalid(concat("a layout needs at least one shard, not ", shards_));
  declare(blocks, options);
  choose_persistent(options);
  form_units();
}

void ParamLayout::declare(const std::vector<std::vector<ParameterSpec>>& blocks,
                          const LayoutOptions& options) {
  std::unordered_map<std::string, int> known;
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    for (const ParameterSpec& spec : blocks[block]) {
      const auto [entry, added] =
          known.try_emplace(spec.name, static_cast<int>(parameters_.size()));
      if (added) {
        LayoutParameter parameter;
        parameter.spec = spec;
        PlacementOptions placement = options.placement;
        if (options.stages_of) parameter.stages = options.stages_of(spec);
        if (parameter.stages.size() < 2) parameter.stages.clear();
        placement.copy |= !parameter.stages.empty() && parameter.stages.front() != options.stage;
        parameter.placement = place_parameter(spec, placement);
        parameter.sums_holders =
            parameter.placement.holders > 1 &&
            (spec.shared_gradient == SharedGradient::of_heads ||
             (spec.shared_gradient == SharedGradient::of_rows && options.splits_sequence));
        parameter.group = options.group_of ? options.group_of(spec) : 0;
        parameters_.push_back(std::move(parameter));
      }
      LayoutParameter& known_as = parameters_[static_cast<std::size_t>(entry->second)];
      if (!added) require_tied(known_as, spec, static_cast<int>(block));
      known_as.blocks.push_back(static_cast<int>(block));
      block_parameters_[block].push_back(entry->second);
    }
  }
}

void ParamLayout::choose_persistent(const LayoutOptions& options) {
  if (!options.persistence) return;
  std::int64_t total = 0;
  for (LayoutParameter& parameter :
       parameters_) {  // in order; one that does not fit is passed over, the scan goes on
    const std::int64_t numel = parameter.numel();
    if (numel > options.param_persistence_threshold ||
        numel > options.model_persistence_threshold - total)
      continue;
    parameter.persistent = true;
    total += numel;
  }
}

void ParamLayout::form_units() {
  std::vector<std::vector<int>> candidates(block_parameters_.size());  // units by their first block
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    LayoutParameter& parameter = parameters_[index];
    auto& open = candidates[static_cast<std::size_t>(parameter.blocks.front())];
    const auto found =
        std::find_if(open.begin(), open.end(), [&](int u) { return belongs(unit(u), parameter); });
    if (found == open.end()) {
      parameter.unit = unit_count();
      open.push_back(parameter.unit);
      Unit unit;
      unit.name = parameter.spec.name;
      unit.blocks = parameter.blocks;
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
    find_gaps(unit);
  }
}

int ParamLayout::find(const std::string& name) const {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (parameters_[index].spec.name == name) return static_cast<int>(index);
  }
  return -1;
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
  for (const LayoutParameter& parameter : parameters_) total += parameter.spec.shape.numel();
  return total;
}

std::int64_t ParamLayout::padded() const {
  std::int64_t total = 0;
  for (const Unit& unit : units_) total += unit.padded;
  return total;
}

}  // namespace zero3d
