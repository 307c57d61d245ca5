// What the plan of an update covers, and in which order.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "zero3d/core/text.h"
#include "zero3d/engine/zero/update_plan.h"

namespace zero3d {
namespace {

ParamLayout random_layout(std::mt19937& random, int groups) {
  const std::int64_t sizes[] = {0, 1, 1023, 1025, 70001, 200000};
  std::vector<std::vector<ParameterSpec>> blocks(1 + random() % 5);
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    for (std::size_t i = 0; i < 1 + random() % 4; ++i) {
      ParameterSpec spec;
      spec.name = concat("b", block, ".p", i);
      spec.shape = Shape{sizes[random() % std::size(sizes)]};
      spec.frozen = random() % 8 == 0;
      blocks[block].push_back(spec);
    }
  }
  LayoutOptions options;
  options.shards = 1 + static_cast<int>(random() % 3);
  options.group_of = [&](const ParameterSpec&) {
    return static_cast<int>(random() % static_cast<unsigned>(groups));
  };
  return ParamLayout(blocks, options);
}

/// The tiles of a phase put together: per unit, [0, shard) in order.
void expect_covered(const ParamLayout& layout, const std::vector<UpdateStep>& steps,
                    UpdatePhase phase, const std::vector<RuleNeeds>& needs, RuleNeeds which) {
  std::map<int, std::int64_t> covered;
  int unit = -1;
  for (const UpdateStep& step : steps) {
    if (step.phase != phase) continue;
    EXPECT_GE(step.tile.unit, unit) << "forward order";
    unit = step.tile.unit;
    EXPECT_EQ(step.group, layout.unit(unit).group);
    EXPECT_EQ(step.tile.begin, covered[unit]);
    EXPECT_GT(step.tile.count, 0);
    covered[unit] += step.tile.count;
  }
  for (int index = 0; index < layout.unit_count(); ++index) {
    const Unit& entry = layout.unit(index);
    const bool wanted = !entry.frozen && needs[static_cast<std::size_t>(entry.group)] == which;
    EXPECT_EQ(covered[index], wanted ? entry.shard : 0) << "unit " << index;
  }
}

TEST(UpdatePlan, TakesEveryTileThroughItsPhasesOnce) {
  std::mt19937 random(1);
  const std::vector<RuleNeeds> needs = {RuleNeeds::elementwise, RuleNeeds::tensor_norms,
                                        RuleNeeds::whole_matrices};
  for (int trial = 0; trial < 200; ++trial) {
    const ParamLayout layout = random_layout(random, 3);
    const std::int64_t knobs[] = {0, 1, 1024, 3000, 65536, 100000, 1'000'000'000};
    const TileSizes sizes = tile_sizes(knobs[random() % std::size(knobs)]);
    EXPECT_EQ(sizes.record % ParamLayout::kAlignment, 0);
    EXPECT_EQ(sizes.tile % sizes.record, 0);
    const UpdatePlan plan = plan_update(layout, needs, sizes.tile);
    using enum UpdatePhase;
    expect_covered(layout, plan.transform, blend, needs, RuleNeeds::whole_matrices);
    expect_covered(layout, plan.update, directions, needs, RuleNeeds::tensor_norms);
    expect_covered(layout, plan.update, apply, needs, RuleNeeds::tensor_norms);
    std::map<int, int> ends, updated;
    int norms = 0, directions_left = 0;
    for (const UpdateStep& step : plan.update) {
      EXPECT_LE(step.tile.count, sizes.tile);
      EXPECT_EQ(step.tile.begin % sizes.record, 0);
      if (step.phase == directions) {
        EXPECT_EQ(norms, 0) << "directions come before the norms";
        ++directions_left;
        continue;
      }
      if (step.phase == UpdatePhase::norms) {
        EXPECT_EQ(step.tile.count, 0);
        ++norms;
        continue;
      }
      if (step.phase == apply) --directions_left;
      EXPECT_EQ(ends[step.tile.unit], 0) << "no tile after the unit's end";
      ends[step.tile.unit] += step.ends_unit ? 1 : 0;
      updated[step.tile.unit] += static_cast<int>(step.tile.count);
      EXPECT_EQ(step.ends_unit, updated[step.tile.unit] == layout.unit(step.tile.unit).shard);
    }
    EXPECT_EQ(directions_left, 0);
    bool any_norms = false;
    for (const Unit& unit : layout.units())
      any_norms |= !unit.frozen && unit.shard > 0 && unit.group == 1;
    EXPECT_EQ(norms, any_norms ? 1 : 0);
    std::map<int, std::int64_t> blended;
    for (const UpdateStep& step : plan.transform) {
      if (step.phase == blend) blended[step.tile.unit] += step.tile.count;
      if (step.phase != orthogonalise) continue;
      EXPECT_EQ(blended[step.tile.unit], layout.unit(step.tile.unit).shard);
      blended.erase(step.tile.unit);
    }
    EXPECT_TRUE(blended.empty()) << "every blended unit is orthogonalised";
  }
}

}  // namespace
}  // namespace zero3d
