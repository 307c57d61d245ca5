// Where the elements of global parameters are, over random shapes, splits, paddings,
// tensor-parallel ranks, pipeline copies and shards: each has one owner, and what is read in one
// layout and written is the same parameter in any other.
#include "zero3d/engine/zero/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {
namespace {

using Elements = std::vector<std::int64_t>;  // one global element each; 0: padding
using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

ParameterSpec spec(const std::string& name, const Shape& shape,
                   const TensorParallelSplit& split = {}) {
  ParameterSpec result;
  result.name = name;
  result.shape = shape;
  result.split = split;
  return result;
}

PlacementOptions place(int rank, int size, std::int64_t padding = 1) {
  PlacementOptions options;
  options.tensor_parallel_rank = rank;
  options.tensor_parallel_size = size;
  options.padding = padding;
  return options;
}

/// Where the runs of all that is stored begin and end in the global tensor.
Ranges held(const ParameterSpec& parameter, const PlacementOptions& options) {
  const Placement placement = place_parameter(parameter, options);
  Ranges ranges;
  for (const GlobalRun& run : global_runs(placement, 0, placement.stored.numel()))
    ranges.emplace_back(run.global_first, run.global_first + run.count);
  return ranges;
}

TEST(Placement, OneRankWithoutPaddingHoldsTheParameterAsItIs) {
  const TensorParallelSplit fused{1, {4, 2, 2}, 2, true};
  for (const ParameterSpec& parameter :
       {spec("w", {5, 8}, fused), spec("b", {7}), spec("v", {3, 4}, {0, {}}), spec("s", {})}) {
    const Placement placement = place_parameter(parameter, {});
    EXPECT_TRUE(placement.whole()) << parameter.name;
    const std::vector<GlobalRun> runs = global_runs(placement, 0, parameter.shape.numel());
    ASSERT_EQ(runs.size(), 1u) << parameter.name;
    EXPECT_EQ(runs[0].count, parameter.shape.numel());
    EXPECT_TRUE(placement.owned);
    EXPECT_TRUE(padding_of(placement).empty());
  }
}

TEST(Placement, AVocabularyIsDealtInEqualSharesAndTheLastRanksHoldLess) {
  const ParameterSpec table = spec("wte", {10, 2}, {0, {}});
  for (int rank = 0; rank < 4; ++rank) {
    const Placement placement = place_parameter(table, place(rank, 4));
    EXPECT_EQ(placement.stored, (Shape{3, 2}));
    EXPECT_EQ(placement.local, (Shape{rank < 3 ? 3 : 1, 2}));
  }
  EXPECT_EQ(held(table, place(3, 4)), (Ranges{{18, 20}}));
  EXPECT_EQ(held(table, place(5, 8)), Ranges{});  // shares of 2: ranks 5 to 7 have none
  const Placement padded = place_parameter(table, place(1, 2, 4));
  EXPECT_EQ(padded.stored, (Shape{8, 2}));
  EXPECT_EQ(padded.local, (Shape{2, 2}));
  EXPECT_EQ(padding_of(padded), (Ranges{{4, 16}}));
  // Megatron's: to a multiple of 64 times the ranks.
  const ParameterSpec gpt2 = spec("wte", {50257, 1}, {0, {}});
  EXPECT_EQ(place_parameter(gpt2, place(0, 1, 64)).stored[0], 50304);
  EXPECT_EQ(place_parameter(gpt2, place(3, 4, 64)).stored[0], 50432 / 4);
}

TEST(Placement, AFusedProjectionIsCutPartByPartRowByRow) {
  const ParameterSpec fused = spec("c_attn", {2, 8}, {1, {4, 2, 2}, 1});
  EXPECT_EQ(place_parameter(fused, place(1, 2)).stored, (Shape{2, 4}));
  EXPECT_EQ(held(fused, place(0, 2)),
            (Ranges{{0, 2}, {4, 5}, {6, 7}, {8, 10}, {12, 13}, {14, 15}}));
  const Placement second = place_parameter(fused, place(1, 2));
  const std::vector<GlobalRun> runs = global_runs(second, 1, 4);
  ASSERT_EQ(runs.size(), 4u);  // the rest of q, k, v, and the next row's q
  EXPECT_EQ(runs[0].global_first, 3);
  EXPECT_EQ(runs[0].offset, 0);
  EXPECT_EQ(runs[3].global_first, 10);
  EXPECT_EQ(runs[3].offset, 3);
  EXPECT_EQ(runs[3].count, 1);
}

TEST(Placement, HeadsAreNeverCutAndFewKeyHeadsAreShared) {
  TensorParallelSplit split{0, {}, 64};
  const ParameterSpec q = spec("q", {12 * 64}, split);
  EXPECT_EQ(held(q, place(0, 8, 7)), (Ranges{{0, 128}}));  // the grain counts, not the padding
  EXPECT_EQ(held(q, place(6, 8)), Ranges{});
  split.shares_grains = true;
  const ParameterSpec k = spec("k", {2 * 64}, split);
  for (int rank = 0; rank < 8; ++rank) {
    const Placement placement = place_parameter(k, place(rank, 8));
    EXPECT_EQ(held(k, place(rank, 8)), (rank < 4 ? Ranges{{0, 64}} : Ranges{{64, 128}}));
    EXPECT_EQ(placement.holders, 4);
    EXPECT_EQ(placement.owned, rank == 0 || rank == 4);
  }
  const ParameterSpec one = spec("q, k", {64}, {0, {0, 64}, 64, true});  // no query head
  EXPECT_EQ(held(one, place(1, 2)), (Ranges{{0, 64}}));
  EXPECT_FALSE(place_parameter(one, place(1, 2)).owned);
  EXPECT_THROW(place_parameter(k, place(0, 3)), Error);
  // One of two ranks would own its half of the first part, but not what they share.
  EXPECT_THROW(place_parameter(spec("q, k", {192}, {0, {128, 64}, 64, true}), place(1, 2)), Error);
  EXPECT_THROW(place_parameter(spec("w", {65}, split), {}), Error);
}

TEST(Placement, ASplitThatDoesNotFitItsShapeIsRefused) {
  EXPECT_THROW(place_parameter(spec("w", {4}, {1, {}}), {}), Error);
  EXPECT_THROW(place_parameter(spec("w", {4}, {0, {2, 3}}), {}), Error);
  EXPECT_THROW(place_parameter(spec("w", {4}, {0, {5, -1}}), {}), Error);
  EXPECT_THROW(place_parameter(spec("w", {4}, {0, {}, 0}), {}), Error);
}

struct Grid {
  int ranks = 1;
  int stages = 1;  ///< Each holds every parameter; the first owns it.
  int shards = 1;
  std::int64_t padding = 1;
};

/// A model in memory as `grid` lays it out: padded units of every stage and tensor-parallel rank.
class LaidOut {
 public:
  LaidOut(const std::vector<ParameterSpec>& parameters, const Grid& grid)
      : parameters_(parameters) {
    for (int stage = 0; stage < grid.stages; ++stage) {
      for (int rank = 0; rank < grid.ranks; ++rank) {
        LayoutOptions options;
        options.shards = grid.shards;
        options.placement = place(rank, grid.ranks, grid.padding);
        options.placement.copy = stage > 0;
        layouts_.emplace_back(std::vector<std::vector<ParameterSpec>>{parameters}, options);
        units_.emplace_back();
        for (const Unit& unit : layouts_.back().units())
          units_.back().emplace_back(static_cast<std::size_t>(unit.padded));
      }
    }
  }

  void read(const std::vector<Elements>& globals) {
    visit([&](int parameter, const GlobalRun& run, std::int64_t* here, bool) {
      std::copy_n(globals[static_cast<std::size_t>(parameter)].begin() + run.global_first,
                  run.count, here);
    });
  }

  /// What the owners hold; elements of nobody stay 0.
  std::vector<Elements> write() {
    std::vector<Elements> globals, owners;
    for (const ParameterSpec& parameter : parameters_)
      globals.emplace_back(static_cast<std::size_t>(parameter.shape.numel()));
    owners = globals;
    visit([&](int parameter, const GlobalRun& run, const std::int64_t* here, bool owned) {
      if (!owned) return;
      for (std::int64_t i = 0; i < run.count; ++i) {
        const auto at = static_cast<std::size_t>(run.global_first + i);
        globals[static_cast<std::size_t>(parameter)][at] = here[i];
        ++owners[static_cast<std::size_t>(parameter)][at];
      }
    });
    for (const Elements& counts : owners)
      for (const std::int64_t count : counts) EXPECT_EQ(count, 1);
    return globals;
  }

  void check() const {
    for (std::size_t rank = 0; rank < layouts_.size(); ++rank) {
      const ParamLayout& layout = layouts_[rank];
      ASSERT_EQ(layout.units().size(), layouts_[0].units().size());
      for (int index = 0; index < layout.unit_count(); ++index) {
        const Elements& unit = units_[rank][static_cast<std::size_t>(index)];
        EXPECT_EQ(layout.unit(index).padded, layouts_[0].unit(index).padded) << "on every rank";
        Elements marked(unit.size(), 1);
        for (const auto& [begin, end] : layout.gaps(index))
          std::fill(marked.begin() + begin, marked.begin() + end, 0);
        for (std::size_t i = 0; i < unit.size(); ++i) ASSERT_EQ(unit[i] == 0, marked[i] == 0);
      }
      for (const LayoutParameter& p : layout.parameters()) {
        EXPECT_EQ(p.offset % ParamLayout::kAlignment, 0);
        EXPECT_EQ(p.placement.owned, layout.unit(p.unit).owned);
        check_parameter(p, units_[rank][static_cast<std::size_t>(p.unit)].data() + p.offset);
      }
    }
  }

 private:
  /// That the stored tensor is the global one but for the cut dim, along which positions ascend.
  static void check_parameter(const LayoutParameter& p, const std::int64_t* stored) {
    const Shape& shape = p.placement.stored;
    const int dim = std::max(p.spec.split.dim, 0);
    std::int64_t inner = 1, present = 0;
    for (int i = dim + 1; i < shape.rank(); ++i) inner *= shape[i];
    for (std::int64_t i = 0; i < shape.numel(); ++i) {
      if (stored[i] == 0) continue;
      ++present;
      const std::int64_t global = stored[i] % kParameter - 1;
      const std::int64_t row = shape[dim] * inner, global_row = p.spec.shape[dim] * inner;
      ASSERT_EQ(i / row, global / global_row) << p.spec.name;
      ASSERT_EQ(i % inner, global % inner) << p.spec.name;
      const bool starts_row = i % row < inner;
      if (!starts_row && stored[i - inner] != 0) {
        ASSERT_LT(stored[i - inner], stored[i]);
      }
    }
    EXPECT_EQ(present, p.placement.local.numel()) << p.spec.name;
  }

  template <typename Use>
  void visit(const Use& use) {
    for (std::size_t rank = 0; rank < layouts_.size(); ++rank) {
      const ParamLayout& layout = layouts_[rank];
      for (int index = 0; index < layout.unit_count(); ++index) {
        const std::int64_t shard = layout.unit(index).shard;
        for (int owner = 0; owner < layout.shards(); ++owner) {
          std::int64_t* here = units_[rank][static_cast<std::size_t>(index)].data() + owner * shard;
          for (const ParameterRun& run : layout.runs(index, owner * shard, shard)) {
            const Placement& placement = layout.parameter(run.parameter).placement;
            for (const GlobalRun& part : global_runs(placement, run.first, run.count))
              use(run.parameter, part, here + run.offset + part.offset, layout.unit(index).owned);
          }
        }
      }
    }
  }

 public:
  static constexpr std::int64_t kParameter = 1'000'000;  ///< Elements are parameter * this + 1 + i.

 private:
  std::vector<ParameterSpec> parameters_;
  std::vector<ParamLayout> layouts_;
  std::vector<std::vector<Elements>> units_;
};

std::int64_t pick(std::mt19937& random, std::initializer_list<std::int64_t> values) {
  return values.begin()[random() % values.size()];
}

/// Of any rank, cut in any way that up to eight ranks can serve.
ParameterSpec random_parameter(std::mt19937& random, const std::string& name) {
  ParameterSpec result = spec(name, {});
  const int rank = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < rank; ++i) result.shape.append(pick(random, {0, 1, 2, 3, 3, 5, 5, 7, 7, 13}));
  TensorParallelSplit& split = result.split;
  split.dim = static_cast<int>(random() % 3) - 1;
  if (split.dim >= rank) split.dim = -1;
  if (split.dim < 0) return result;
  split.grain = pick(random, {1, 1, 2, 4});
  split.shares_grains = split.grain > 1 && random() % 2 == 0;
  std::int64_t extent = 0;
  const std::int64_t shared =
      pick(random, {1, 12});  // parts of one parameter are shared by as many
  for (std::size_t part = 0, parts = 1 + random() % 3; part < parts; ++part) {
    const std::int64_t grains = split.shares_grains ? pick(random, {0, shared, shared})
                                                    : pick(random, {0, 1, 2, 7, 8, 9, 21, 130});
    split.parts.push_back(grains * split.grain);
    extent += split.parts.back();
  }
  result.shape[split.dim] = extent;
  if (split.parts.size() == 1) split.parts.clear();
  return result;
}

Grid random_grid(std::mt19937& random) {
  Grid grid;
  grid.ranks = 1 + static_cast<int>(random() % 8);
  grid.stages = 1 + static_cast<int>(random() % 2);
  grid.shards = 1 + static_cast<int>(random() % 5);
  grid.padding = pick(random, {1, 4, 64});
  return grid;
}

TEST(Placement, EveryElementHasOneOwnerAndReadingAndWritingIsTheIdentityBetweenAnyLayouts) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 150; ++trial) {
    std::vector<ParameterSpec> parameters;
    std::vector<Elements> model;
    for (std::size_t i = 0, count = 1 + random() % 4; i < count; ++i) {
      parameters.push_back(random_parameter(random, concat("p", i)));
      model.emplace_back(static_cast<std::size_t>(parameters.back().shape.numel()));
      std::iota(model.back().begin(), model.back().end(),
                static_cast<std::int64_t>(i) * LaidOut::kParameter + 1);
    }
    std::vector<Elements> saved = model;
    for (int times = 0; times < 2; ++times) {
      const Grid grid = random_grid(random);
      SCOPED_TRACE(concat("trial ", trial, ": ", grid.ranks, " ranks, ", grid.stages, " stages, ",
                          grid.shards, " shards, padding ", grid.padding));
      LaidOut laid_out(parameters, grid);
      laid_out.read(saved);
      laid_out.check();
      saved = laid_out.write();
      ASSERT_EQ(saved, model);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Placement, RunsAreAsFewAsPossibleAndAPieceOfThemIsTheSame) {
  std::mt19937 random(8);
  for (int trial = 0; trial < 500; ++trial) {
    const ParameterSpec parameter = random_parameter(random, "p");
    const Grid grid = random_grid(random);
    const int rank = static_cast<int>(random() % static_cast<unsigned>(grid.ranks));
    const Placement placement = place_parameter(parameter, place(rank, grid.ranks, grid.padding));
    const std::int64_t stored = placement.stored.numel();
    const std::vector<GlobalRun> runs = global_runs(placement, 0, stored);
    std::vector<std::int64_t> global(static_cast<std::size_t>(stored), -1), pieces = global;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const GlobalRun& run = runs[i];
      ASSERT_GT(run.count, 0);
      for (std::int64_t k = 0; k < run.count; ++k)
        global[static_cast<std::size_t>(run.offset + k)] = run.global_first + k;
      if (i == 0) continue;
      const GlobalRun& before = runs[i - 1];
      ASSERT_GE(run.offset, before.offset + before.count);
      ASSERT_FALSE(run.offset == before.offset + before.count &&
                   run.global_first == before.global_first + before.count);
    }
    for (std::int64_t first = 0; first < stored;) {
      const std::int64_t count = std::min<std::int64_t>(1 + random() % 50, stored - first);
      for (const GlobalRun& run : global_runs(placement, first, count)) {
        for (std::int64_t k = 0; k < run.count; ++k)
          pieces[static_cast<std::size_t>(first + run.offset + k)] = run.global_first + k;
      }
      first += count;
    }
    ASSERT_EQ(pieces, global) << trial;
  }
}

/// Element i of every parameter is i + 1.
class CountingUp final : public ParameterSource {
 public:
  void read(const ParameterSpec&, std::span<const GlobalRun> runs, const View& dst) const override {
    for (const GlobalRun& run : runs) {
      float* values = dst.flat(run.offset, run.count).as<float>();
      std::iota(values, values + run.count, static_cast<float>(run.global_first + 1));
    }
  }
};

/// Copies a loaded parameter to `global`, which is complete then when `alone`, and back.
void check_loaded(const Placement& placement, const View& stored, const View& global,
                  Device& device, bool alone) {
  EXPECT_EQ(stored.shape(), placement.stored);
  for (const auto& [begin, end] : padding_of(placement))
    for (std::int64_t i = begin; i < end; ++i) EXPECT_EQ(stored.as<float>()[i], 0);
  copy_to_global(placement, stored, global);
  TrackingResource& host = device.memory(Tier::pageable);
  Tensor copy;
  const ConstView seen = view_as_global(placement, stored, host, copy);
  EXPECT_EQ(seen.shape(), placement.global);
  EXPECT_EQ(copy.defined(), !placement.whole());
  if (alone) {
    EXPECT_EQ(std::memcmp(seen.data(), global.data(), global.bytes()), 0);
  }
  Tensor back(host, kNoStream, DType::f32, placement.stored, Category::other);
  std::memset(back.view().data(), 0, back.view().bytes());
  copy_from_global(placement, global, back.view());
  EXPECT_EQ(std::memcmp(back.view().data(), stored.data(), stored.bytes()), 0);
}

TEST(Placement, AStoreLoadsWhatIsHereAndExportsSeeItUnderItsGlobalShape) {
  const std::vector<ParameterSpec> parameters = {
      spec("wte", {10, 3}, {0, {}}), spec("fused", {4, 12}, {1, {4, 2, 6}}), spec("norm", {5})};
  for (const int ranks : {1, 3}) {
    std::vector<std::vector<float>> exported;
    for (const ParameterSpec& parameter : parameters)
      exported.emplace_back(static_cast<std::size_t>(parameter.shape.numel()));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto device = make_cpu_device({});
      const auto self = make_self_communicator();
      const Mesh mesh(*self);
      ZeroGroups groups = make_zero_groups(mesh, {});
      LayoutOptions options;
      options.placement = place(rank, ranks, 4);
      const ParamLayout layout({parameters}, options);
      const RankStreams streams(*device);
      ParameterStore store(*device, layout, groups, {}, streams);
      store.load(CountingUp());
      for (int unit = 0; unit < layout.unit_count(); ++unit) {
        store.with_whole(unit, [&](View whole) {
          for (const int index : layout.unit(unit).parameters) {
            std::vector<float>& values = exported[static_cast<std::size_t>(index)];
            const LayoutParameter& p = layout.parameter(index);
            const View global(reinterpret_cast<std::byte*>(values.data()), DType::f32,
                              p.spec.shape);
            check_loaded(p.placement, p.view_in(whole), global, *device, ranks == 1);
          }
        });
      }
    }
    for (const std::vector<float>& values : exported)
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], static_cast<float>(i + 1)) << ranks;
  }
}

}  // namespace
}  // namespace zero3d
