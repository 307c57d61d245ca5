#include "zero3d/engine/zero/fetch_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// Walks the operations that use parameters once, deciding at each what to gather, what to prefetch
/// and what to let go. Its positions count only those.
class Planner {
 public:
  Planner(const ParamLayout& layout, std::span<const Op> ops, const FetchOptions& options)
      : layout_(layout),
        ops_(ops),
        options_(options),
        uses_(layout.units().size()),
        live_gather_(layout.units().size(), -1),
        used_before_(1, 0) {
    for (std::size_t index = 0; index < ops.size(); ++index) {
      if (uses_parameters(ops[index].kind)) index_of_.push_back(static_cast<int>(index));
    }
    positions_ = static_cast<int>(index_of_.size());
    units_at_.resize(index_of_.size());
    for (int position = 0; position < positions_; ++position) {
      std::int64_t elements = 0;
      for (int unit : layout_.part_units(part_at(position))) {
        if (layout_.unit(unit).persistent) continue;
        units_at_[static_cast<std::size_t>(position)].push_back(unit);
        uses_[static_cast<std::size_t>(unit)].push_back(position);
        elements += elements_of(unit);
      }
      used_before_.push_back(used_before_.back() + elements);
    }
    for (int unit = 0; unit < layout.unit_count(); ++unit) wait_for_use(unit, 0);
  }

  /// None when some position's units have no room: the block is then named by throw_no_room().
  std::optional<FetchPlan> run() {
    for (int position = 0; position < positions_; ++position) {
      if (!require(position)) return std::nullopt;
      prefetch(position);
      plan_.peak_live_elements = std::max(plan_.peak_live_elements, live_elements_);
      let_go(position);
    }
    plan_.ops.assign(ops_.begin(), ops_.end());
    plan_.issues.resize(ops_.size());
    plan_.releases.resize(ops_.size());
    for (std::size_t i = 0; i < plan_.gathers.size(); ++i) {
      FetchPlan::Gather& gather = plan_.gathers[i];
      for (int* position : {&gather.issue, &gather.first_use, &gather.release})
        *position = index_of_[static_cast<std::size_t>(*position)];
      plan_.issues[static_cast<std::size_t>(gather.issue)].push_back(static_cast<int>(i));
      plan_.releases[static_cast<std::size_t>(gather.release)].push_back(static_cast<int>(i));
    }
    report_clipped();
    return std::move(plan_);
  }

  /// After run() found no plan: what its position needs at once, and for which block.
  [[noreturn]] void throw_no_room() const {
    std::int64_t elements = 0;
    for (int unit : units_at(stuck_position_)) elements += elements_of(unit);
    const Op& op = op_at(stuck_position_);
    throw OutOfMemory(
        elements, "device",
        concat("the parameters of block ", op.block, tile_of(op), " need ", format_count(elements),
               " gathered elements at once, of ", format_count(options_.budget_elements),
               " that the device memory leaves for gathering; raise --device-memory, lower the "
               "micro-batch, or cut layers into more tiles (linear_tiles and head_tiles of the "
               "section zero3d)"));
  }

 private:
  std::string tile_of(const Op& op) const {
    const int tiles = layout_.tiles(op.block);
    return tiles == 1 ? "" : concat(", tile ", op.tile + 1, " of ", tiles, ",");
  }
  std::int64_t elements_of(int unit) const { return layout_.unit(unit).padded; }
  const Op& op_at(int position) const {
    return ops_[static_cast<std::size_t>(index_of_[static_cast<std::size_t>(position)])];
  }
  int part_at(int position) const {
    return layout_.part(op_at(position).block, op_at(position).tile);
  }
  FetchPlan::Gather& gather(int index) { return plan_.gathers[static_cast<std::size_t>(index)]; }
  int& live_gather(int unit) { return live_gather_[static_cast<std::size_t>(unit)]; }
  const std::vector<int>& units_at(int position) const {
    return units_at_[static_cast<std::size_t>(position)];
  }

  /// The first position from `position` on that uses the unit, or positions_.
  int next_use(int unit, int position) const {
    const auto& uses = uses_[static_cast<std::size_t>(unit)];
    const auto found = std::lower_bound(uses.begin(), uses.end(), position);
    return found == uses.end() ? positions_ : *found;
  }

  /// The unit is not there, and wanted again from `position` on.
  void wait_for_use(int unit, int position) {
    const int next = next_use(unit, position);
    if (next < positions_) missing_.emplace(next, unit);
  }

  int last_use_before(int unit, int position) const {
    const auto& uses = uses_[static_cast<std::size_t>(unit)];
    return *(std::lower_bound(uses.begin(), uses.end(), position) - 1);
  }

  /// First fit in the arena among the live gathers; none when the budget has no room.
  std::optional<std::int64_t> place(std::int64_t elements) {
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (int index : live_)
      taken.emplace_back(gather(index).offset, elements_of(gather(index).unit));
    std::sort(taken.begin(), taken.end());
    std::int64_t offset = 0;
    for (const auto& [begin, length] : taken) {
      if (begin - offset >= elements) break;
      offset = begin + length;
    }
    if (offset > options_.budget_elements - elements) return std::nullopt;
    return offset;
  }

  void issue(int unit, int position, std::int64_t offset) {
    const int index = static_cast<int>(plan_.gathers.size());
    const int first_use = next_use(unit, position);
    missing_.erase({first_use, unit});
    plan_.gathers.push_back({unit, position, first_use, position, offset});
    plan_.arena_elements = std::max(plan_.arena_elements, offset + elements_of(unit));
    plan_.gathered_elements += elements_of(unit);
    live_.push_back(index);
    live_gather(unit) = index;
    live_elements_ += elements_of(unit);
  }

  void end(int index, int release) {
    gather(index).release = release;
    wait_for_use(gather(index).unit, release + 1);
    live_.erase(std::find(live_.begin(), live_.end(), index));
    live_gather(gather(index).unit) = -1;
    live_elements_ -= elements_of(gather(index).unit);
  }

  /// Gathers what this position uses and is not there yet; gives up kept units when the budget
  /// needs their room. False when that is not enough.
  bool require(int position) {
    for (int unit : units_at(position)) {
      if (live_gather(unit) >= 0) continue;
      std::optional<std::int64_t> offset = place(elements_of(unit));
      while (!offset && evict(position)) offset = place(elements_of(unit));
      if (!offset) {
        stuck_position_ = position;
        return false;
      }
      issue(unit, position, *offset);
    }
    return true;
  }

  /// Ends the kept gather whose next use is farthest, as if it had been released after its last
  /// use.
  bool evict(int position) {
    int victim = -1;
    int farthest = position;
    for (int index : live_) {
      const int next = next_use(gather(index).unit, position);
      if (gather(index).first_use < position && next > farthest) victim = index, farthest = next;
    }
    if (victim < 0) return false;
    budget_stopped_reuse_ = true;
    end(victim, last_use_before(gather(victim).unit, position));
    return true;
  }

  /// Gathers units of later positions while fewer than prefetch_elements wait for their first use.
  void prefetch(int position) {
    std::int64_t waiting = 0;
    for (int index : live_)
      waiting += gather(index).first_use > position ? elements_of(gather(index).unit) : 0;
    while (!missing_.empty()) {
      const int unit = missing_.begin()->second;
      if (waiting >= options_.prefetch_elements) return;
      if (live_elements_ + elements_of(unit) > options_.max_live_elements) return;
      const std::optional<std::int64_t> offset = place(elements_of(unit));
      if (!offset) {
        budget_stopped_prefetch_ = true;
        return;
      }
      issue(unit, position, *offset);
      waiting += elements_of(unit);
    }
  }

  /// Elements that the next position uses and that are not there.
  std::int64_t missing_next(int position) {
    std::int64_t missing = 0;
    if (position + 1 == positions_) return 0;
    for (int unit : units_at(position + 1))
      missing += live_gather(unit) < 0 ? elements_of(unit) : 0;
    return missing;
  }

  /// Releases what this position used, unless it is used again soon enough and there is room beside
  /// the next position's.
  void let_go(int position) {
    const std::int64_t missing = missing_next(position);
    for (int unit : units_at(position)) {
      const int next = next_use(unit, position + 1);
      const bool soon =
          next < positions_ && used_before_[static_cast<std::size_t>(next)] -
                                       used_before_[static_cast<std::size_t>(position) + 1] <
                                   options_.max_reuse_distance;
      if (!soon || live_elements_ + missing > options_.max_live_elements)
        end(live_gather(unit), position);
    }
  }

  void report_clipped() {
    if (budget_stopped_prefetch_) {
      plan_.clipped.push_back(
          concat("the prefetch bucket of ", format_count(options_.prefetch_elements),
                 " elements is clipped to what the device memory leaves for gathered parameters"));
    }
    if (budget_stopped_reuse_) {
      plan_.clipped.push_back(concat("the reuse distance of ",
                                     format_count(options_.max_reuse_distance),
                                     " elements is clipped: the device memory cannot keep "
                                     "parameters until they are used again"));
    }
  }

  const ParamLayout& layout_;
  std::span<const Op> ops_;
  const FetchOptions& options_;
  int positions_ = 0;
  std::vector<int> index_of_;               // per position: of its operation
  std::vector<std::vector<int>> units_at_;  // per position
  std::vector<std::vector<int>> uses_;      // per unit: positions, ascending
  std::vector<int> live_gather_;            // per unit: its gather now, or -1
  std::vector<std::int64_t> used_before_;   // elements used by positions before p
  std::set<std::pair<int, int>> missing_;   // units that are not there, by their next use
  std::vector<int> live_;
  std::int64_t live_elements_ = 0;
  int stuck_position_ = 0;
  bool budget_stopped_prefetch_ = false;
  bool budget_stopped_reuse_ = false;
  FetchPlan plan_;
};

}  // namespace

FetchPlan plan_fetches(const ParamLayout& layout, std::span<const Op> ops,
                       const FetchOptions& options) {
  if (std::optional<FetchPlan> plan = Planner(layout, ops, options).run()) return *std::move(plan);
  // What was gathered early may lie where the rest then finds no hole. Each position on its own
  // packs without holes, and fits whenever anything does.
  FetchOptions plain = options;
  plain.prefetch_elements = plain.max_live_elements = plain.max_reuse_distance = 0;
  Planner planner(layout, ops, plain);
  std::optional<FetchPlan> plan = planner.run();
  if (!plan) planner.throw_no_room();
  plan->clipped.push_back(
      "the prefetch bucket and the reuse distance are clipped to 0: the device memory holds the "
      "parameters of one operation at a time");
  return *std::move(plan);
}

}  // namespace zero3d
