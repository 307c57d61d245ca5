// The process grid: every factorisation is a partition along each axis, in DeepSpeed's rank order.
#include "zero3d/parallel/topology.h"

#include <gtest/gtest.h>

#include <set>

#include "zero3d/core/error.h"

namespace zero3d {
namespace {

TEST(Topology, TensorIsInnermostThenDataThenPipeline) {
  const Topology grid(12, {2, 3, 2});
  EXPECT_EQ(grid.group(Axis::tp, 4), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(grid.group(Axis::dp, 4), (std::vector<int>{1, 4}));
  EXPECT_EQ(grid.group(Axis::pp, 4), (std::vector<int>{4, 10}));
  EXPECT_EQ(grid.group(Axis::model, 4), (std::vector<int>{3, 4, 5, 9, 10, 11}));
  EXPECT_EQ(grid.coordinates(10), (Topology::Coordinates{1, 1, 1}));
  EXPECT_EQ(grid.describe(10), "rank 10 (dp 1, tp 1, pp 1)");
  EXPECT_EQ(grid.pipeline_neighbor(4, 1), 10);
  EXPECT_EQ(grid.pipeline_neighbor(4, -1), -1);
  EXPECT_EQ(grid.pipeline_neighbor(10, 1), -1);
}

TEST(Topology, SequenceParallelRanksAreBetweenTensorAndData) {
  const Topology grid(16, {.dp = 2, .tp = 2, .pp = 2, .sp = 2});
  EXPECT_EQ(grid.group(Axis::tp, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(grid.group(Axis::sp, 0), (std::vector<int>{0, 2}));
  EXPECT_EQ(grid.group(Axis::dp, 0), (std::vector<int>{0, 4}));
  EXPECT_EQ(grid.group(Axis::pp, 0), (std::vector<int>{0, 8}));
  EXPECT_EQ(grid.group(Axis::zero, 1), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(grid.group(Axis::stage, 9), (std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(grid.describe(7), "rank 7 (dp 1, tp 1, pp 0, sp 1)");
}

TEST(Topology, OnlyAxesThatThereAreAreDescribed) {
  EXPECT_EQ(Topology(4, {.dp = 4}).describe(3), "rank 3");
  EXPECT_EQ(Topology(4, {.dp = 2, .tp = 2}).describe(3), "rank 3 (dp 1, tp 1)");
  EXPECT_EQ(Topology(2, {.pp = 2}).describe(1), "rank 1 (pp 1)");
}

TEST(Topology, GroupsPartitionTheWorldAlongEveryAxis) {
  for (int dp = 1; dp <= 4; ++dp)
    for (int tp = 1; tp <= 4; ++tp)
      for (int pp = 1; pp <= 4; ++pp) {
        const int sp = 1 + (dp + tp + pp) % 3;
        const int world = dp * tp * pp * sp;
        const Topology grid(world, {dp, tp, pp, sp});
        for (int rank = 0; rank < world; ++rank)
          EXPECT_EQ(grid.rank_of(grid.coordinates(rank)), rank);
        for (const Axis axis : kAxes) {
          std::multiset<int> seen;
          for (const auto& group : grid.groups(axis)) {
            EXPECT_EQ(static_cast<int>(group.size()), grid.degree(axis)) << name_of(axis);
            seen.insert(group.begin(), group.end());
            for (const int rank : group) EXPECT_EQ(grid.group(axis, rank), group);
          }
          EXPECT_EQ(static_cast<int>(seen.size()), world);
          EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), seen.size());
        }
      }
}

TEST(Topology, AFailingProductIsPrinted) {
  try {
    Topology(8, {2, 3, 2});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("dp 2 x tp 3 x pp 2 = 12, but there are 8 ranks"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(Topology(4, {-2, -2, 1}), Error);
  EXPECT_THROW(Topology(0, {0, 1, 1}), Error);
}

TEST(Topology, DataParallelTakesWhatIsLeft) {
  EXPECT_EQ(Topology::with_rest_as_dp(12, 2, 3).degrees().dp, 2);
  EXPECT_EQ(Topology::with_rest_as_dp(12, 2, 1, 3).degrees().dp, 2);
  EXPECT_THROW(Topology::with_rest_as_dp(12, 5, 1), Error);
  EXPECT_THROW(Topology::with_rest_as_dp(12, 0, 1), Error);
  EXPECT_THROW(Topology::with_rest_as_dp(12, 1, 1, 5), Error);
}

TEST(Subgroups, ShardGroupsAreConsecutiveAndReplicasStride) {
  const Subgroups groups(6, 2, "zero_hpz_partition_size");
  EXPECT_EQ(groups.shard_group(3), (std::vector<int>{2, 3}));
  EXPECT_EQ(groups.replica_group(3), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(groups.replicas(), 3);
  for (int n = 1; n <= 12; ++n)
    for (int s = 1; s <= n; ++s) {
      if (n % s != 0) {
        EXPECT_THROW(Subgroups(n, s, "mics_shard_size"), Error);
        continue;
      }
      const Subgroups g(n, s, "mics_shard_size");
      for (int a = 0; a < n; ++a)
        for (int b = 0; b < n; ++b) {
          // Two ranks meet in one kind of group at most, unless they are the same rank.
          const bool shard = g.shard_color(a) == g.shard_color(b);
          const bool replica = g.replica_color(a) == g.replica_color(b);
          EXPECT_EQ(shard && replica, a == b);
        }
    }
}

TEST(Topology, NearestMeshesDivideTheRanks) {
  EXPECT_EQ(nearest_meshes(4, 3, 1, 1), "tp 2 (dp 2) or tp 4 (dp 1) with 4 ranks, or 3 or 6 ranks");
  EXPECT_EQ(nearest_meshes(8, 3, 1, 1), "tp 2 (dp 4) or tp 4 (dp 2) with 8 ranks, or 6 or 9 ranks");
  EXPECT_EQ(nearest_meshes(2, 4, 1, 1),
            "degrees of 1 (dp 2) or tp 2 (dp 1) with 2 ranks, or 4 ranks");
  EXPECT_EQ(nearest_meshes(12, 2, 5, 1),
            "tp 2 x pp 3 (dp 2) or tp 2 x pp 6 (dp 1) with 12 ranks, or 10 or 20 ranks");
  // Whatever is asked, what is named can be made.
  for (int world = 1; world <= 24; ++world)
    for (int tp = 1; tp <= 9; ++tp) EXPECT_FALSE(nearest_meshes(world, tp, 3, 1).empty());
  EXPECT_EQ(nearest_meshes(1, std::int64_t{1} << 62, std::int64_t{1} << 62, 1),
            "degrees of 1 (dp 1) with 1 ranks");
}

TEST(Topology, TableHasAllRanksAndLeavesOutTheMiddleOfLongLines) {
  EXPECT_EQ(Topology(8, {.dp = 2, .tp = 2, .pp = 2}).table(),
            (std::vector<std::string>{"pp 0  dp 0: ranks 0-1  dp 1: ranks 2-3",
                                      "pp 1  dp 0: ranks 4-5  dp 1: ranks 6-7"}));
  EXPECT_EQ(Topology(4, {.dp = 1, .pp = 2, .sp = 2}).table(),
            (std::vector<std::string>{"pp 0  dp 0 sp 0: rank 0  dp 0 sp 1: rank 1",
                                      "pp 1  dp 0 sp 0: rank 2  dp 0 sp 1: rank 3"}));
  const std::vector<std::string> wide = Topology(128, {.dp = 64, .tp = 2}).table();
  EXPECT_NE(wide[0].find("dp 3: ranks 6-7  ...  dp 60: ranks 120-121"), std::string::npos);
}

}  // namespace
}  // namespace zero3d
