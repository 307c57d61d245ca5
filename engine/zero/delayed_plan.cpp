#include "zero3d/engine/zero/delayed_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "zero3d/core/multiples.h"

namespace zero3d {
namespace {

/// Products that are whole but for rounding stay what they are.
std::int64_t share_of(std::int64_t blocks, double share) {
  const double part = share * static_cast<double>(blocks) * (1 - 1e-12);
  return std::clamp(static_cast<std::int64_t>(std::ceil(part)), std::int64_t{1}, blocks);
}

struct Blocks {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// A parameter's in the shard.
std::vector<Blocks> parameter_blocks(const ParamLayout& layout, int unit, int shard_rank) {
  std::vector<Blocks> result;
  const std::int64_t shard = layout.unit(unit).shard;
  for (const ParameterRun& run : layout.runs(unit, shard_rank * shard, shard))
    result.push_back(
        {run.offset / ParamLayout::kAlignment, ceil_div(run.count, ParamLayout::kAlignment)});
  return result;
}

}  // namespace

DelayedStep delayed_step(const DelayedUpdateSettings& settings, std::int64_t step) {
  const std::int64_t index = step - 1 - settings.warm_up;
  if (index < 0) return {.warms_up = true, .ends_round = true};
  const std::int64_t round = settings.update_every;
  const std::int64_t between = settings.steps_between_choices();
  DelayedStep at;
  at.ends_round = (index + 1) % round == 0;
  if (index % round == 0)
    at.selects = index == 0 || (between > 0 && index / between > (index - round) / between);
  return at;
}

std::vector<std::int64_t> most_chosen(const ParamLayout& layout, const std::vector<bool>& offloaded,
                                      double share) {
  std::vector<std::int64_t> most(offloaded.size());
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    const auto index = static_cast<std::size_t>(unit);
    for (int rank = 0; offloaded[index] && rank < layout.shards(); ++rank) {
      std::int64_t chosen = 0;
      for (const Blocks& blocks : parameter_blocks(layout, unit, rank))
        chosen += share_of(blocks.count, share);
      most[index] = std::max(most[index], chosen);
    }
  }
  return most;
}

std::vector<std::int64_t> choose_blocks(const ParamLayout& layout, int unit, int shard_rank,
                                        double share, std::span<const double> squares) {
  const auto weight = [&](std::int64_t block) {
    const double value = squares[static_cast<std::size_t>(block)];
    return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
  };
  std::vector<std::int64_t> chosen;
  for (const Blocks& blocks : parameter_blocks(layout, unit, shard_rank)) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(blocks.count));
    std::iota(order.begin(), order.end(), blocks.first);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return weight(a) > weight(b); });
    order.resize(static_cast<std::size_t>(share_of(blocks.count, share)));
    chosen.insert(chosen.end(), order.begin(), order.end());
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace zero3d
