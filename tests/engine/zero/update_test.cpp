// The update loop's parts on their own: what a plan covers and in which order, how records lie, and
// what the window asks of a store.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "zero3d/core/text.h"
#include "zero3d/engine/zero/stagger.h"
#include "zero3d/engine/zero/tile_window.h"
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

TEST(RecordLayout, ATileIsOneRangeOfWholePagesAndNothingOverlaps) {
  std::mt19937 random(2);
  const DType dtypes[] = {DType::f32, DType::bf16};
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t elements = 1024 * (1 + random() % 300);
    const std::int64_t record = 1024 * (1 + random() % 80);
    std::vector<RecordPart> parts(1 + random() % 4);
    for (RecordPart& part : parts) part.dtype = dtypes[random() % 2];
    const RecordLayout layout(elements, record, parts);
    std::vector<std::byte> memory(static_cast<std::size_t>(layout.bytes()));
    const View all(memory.data(), DType::u8, Shape{layout.bytes()});
    std::set<const std::byte*> seen;
    std::int64_t payload = 0;
    for (std::int64_t begin = 0; begin < elements;) {
      const std::int64_t count = layout.run(begin, elements - begin);
      EXPECT_EQ(begin % record, 0);
      const std::int64_t from = layout.offset(begin), to = layout.offset(begin + count);
      EXPECT_EQ(from % RecordLayout::kAlignment, 0);
      EXPECT_EQ(to % RecordLayout::kAlignment, 0);
      const View bytes = all.flat(from, to - from);
      const std::byte* last = bytes.data();
      std::set<std::ptrdiff_t> bases;
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const View view = layout.view(bytes, begin, part, begin, count);
        if (static_cast<std::int64_t>(view.bytes()) >= Stagger::kSmall) {
          EXPECT_TRUE(bases.insert((view.data() - bytes.data()) % Stagger::kPage).second)
              << "two parts of a record begin at the same place of a page";
        }
        EXPECT_EQ(view.numel(), count);
        EXPECT_EQ(view.dtype(), parts[part].dtype);
        EXPECT_EQ((view.data() - all.data()) % 64, 0);
        EXPECT_GE(view.data(), last);
        last = view.data() + view.bytes();
        EXPECT_LE(last, bytes.data() + bytes.bytes());
        payload += static_cast<std::int64_t>(view.bytes());
        const View inner = layout.view(all, 0, part, begin + count / 2, count - count / 2);
        EXPECT_EQ(inner.data(), view.flat(count / 2, count - count / 2).data());
      }
      begin += count;
    }
    EXPECT_LE(payload, layout.bytes());
    const std::int64_t records = (elements + record - 1) / record;
    EXPECT_LE(layout.bytes(), payload + records * std::ssize(parts) * 3 * Stagger::kPage);
  }
  EXPECT_EQ(RecordLayout().bytes(), 0);
}

TEST(Stagger, NoTwoArraysBeginAtTheSamePlaceOfAPageWhereverTheyAreAllocated) {
  const std::unique_ptr<Device> device = make_cpu_device({});
  for (const std::int64_t elements : {1 << 14, 1 << 17, 1 << 18, 1 << 22}) {
    std::vector<StaggeredTensor> arrays;
    std::set<std::intptr_t> places, pages;
    for (int colour = 0; colour < 6; ++colour) {
      const std::int64_t before = device->memory().use().current;
      const StaggeredTensor& array = arrays.emplace_back(device->memory(), DType::f32, elements,
                                                         Category::other, ArrayColour{colour});
      EXPECT_EQ(array.numel(), elements);
      EXPECT_EQ(device->memory().use().current - before,
                4 * elements + Stagger::slack(4 * elements));
      const auto base = reinterpret_cast<std::intptr_t>(array.view().data());
      EXPECT_EQ(base % 64, 0);
      places.insert(base % Stagger::kPage);
      pages.insert(base % Stagger::kPeriod / Stagger::kPage);
    }
    EXPECT_EQ(places.size(), 6u) << elements;
    if (4 * elements >= Stagger::kLarge) {
      EXPECT_EQ(pages.size(), 6u) << elements;
    }
  }
  const StaggeredTensor small(device->memory(), DType::f32, 1024, Category::other,
                              ArrayColour::gradient);
  EXPECT_EQ(Stagger::slack(4096), 0);
  EXPECT_EQ(small.numel(), 1024);
}

/// Writes down what it is asked, as "open 0:2048 in 1".
class ScriptStore final : public StateStore {
 public:
  explicit ScriptStore(int slots) : slots_(slots) {}
  int slots() const override { return slots_; }
  View open(int slot, const Tile& tile, Event&) override {
    log.push_back(concat("open ", tile.unit, ":", tile.begin, " in ", slot));
    return {};
  }
  void close(int slot, const Tile& tile, const Event& used) override {
    EXPECT_TRUE(used.recorded());
    log.push_back(concat("close ", tile.unit, ":", tile.begin, " in ", slot));
  }
  std::vector<std::string> log;

 private:
  int slots_;
};

std::vector<std::string> script(int slots, const std::vector<Tile>& tiles) {
  const std::unique_ptr<Device> device = make_cpu_device({});
  const std::unique_ptr<Stream> stream = device->create_stream("update");
  ScriptStore store(slots);
  TileWindow window(store, tiles, *stream);
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    window.acquire();
    store.log.push_back("use");
    window.release();
  }
  return store.log;
}

using Log = std::vector<std::string>;

TEST(TileWindow, ReadsAheadAsFarAsThereAreSlots) {
  const std::vector<Tile> tiles = {{0, 0, 1024}, {0, 1024, 1024}, {1, 0, 1024}};
  EXPECT_EQ(script(1, tiles),
            (Log{"open 0:0 in 0", "use", "close 0:0 in 0", "open 0:1024 in 0", "use",
                 "close 0:1024 in 0", "open 1:0 in 0", "use", "close 1:0 in 0"}));
  EXPECT_EQ(script(2, tiles),
            (Log{"open 0:0 in 0", "open 0:1024 in 1", "use", "close 0:0 in 0", "open 1:0 in 0",
                 "use", "close 0:1024 in 1", "use", "close 1:0 in 0"}));
}

TEST(TileWindow, DoesNotReadATileThatIsStillToBeWrittenBefore) {
  const std::vector<Tile> twice = {{0, 0, 2048}, {1, 0, 1024}, {0, 1024, 1024}};
  EXPECT_EQ(script(3, twice),
            (Log{"open 0:0 in 0", "open 1:0 in 1", "use", "close 0:0 in 0", "open 0:1024 in 2",
                 "use", "close 1:0 in 1", "use", "close 0:1024 in 2"}));
}

}  // namespace
}  // namespace zero3d
