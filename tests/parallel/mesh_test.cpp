// The mesh: for every factorisation of a world its groups are the topology's, and it makes no
// communicator that it has already.
#include "zero3d/parallel/mesh.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/parallel/comm/planned_world.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d {
namespace {

/// Counts how often its world is split.
class SplitCounter final : public detail::ForwardingCommunicator {
 public:
  SplitCounter(std::shared_ptr<Communicator> inner, std::atomic<int>& splits)
      : ForwardingCommunicator(std::move(inner)), splits_(splits) {}
  std::unique_ptr<Communicator> split(int color, int key) override {
    ++splits_;
    return inner_->split(color, key);
  }

 private:
  std::atomic<int>& splits_;
};

/// The world ranks of `group`, in its order.
std::vector<int> members(Communicator& group, int world_rank) {
  std::vector<int> ranks;
  for (const std::string& text : group.exchange(std::to_string(world_rank)))
    ranks.push_back(std::stoi(text));
  return ranks;
}

void expect_groups_of_topology(const GridDegrees& degrees) {
  const int ranks = degrees.dp * degrees.tp * degrees.pp * degrees.sp;
  auto worlds = make_thread_communicators(ranks);
  std::atomic<int> splits = 0;
  std::atomic<int> firsts = 0;
  std::vector<std::shared_ptr<Communicator>> shared;
  for (auto& world : worlds) shared.push_back(std::move(world));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      SplitCounter world(shared[static_cast<std::size_t>(rank)], splits);
      const Mesh mesh(world, degrees);
      for (const Axis axis : kAxes) {
        const std::vector<int> expected = mesh.topology().group(axis, rank);
        EXPECT_EQ(members(mesh.group(axis), rank), expected) << name_of(axis) << " of " << rank;
        EXPECT_EQ(mesh.size(axis), mesh.topology().degree(axis));
        EXPECT_EQ(expected.at(static_cast<std::size_t>(mesh.rank(axis))), rank);
      }
      if (mesh.first_of_its_batch()) ++firsts;
    });
  }
  threads.clear();
  EXPECT_EQ(firsts, degrees.dp * degrees.pp) << "one for each stage and data-parallel place";
  // Sets of ranks between one rank and the world that the axes name.
  const Topology topology(ranks, degrees);
  std::set<std::vector<int>> groups;
  for (const Axis axis : kAxes) groups.insert(topology.group(axis, 0));
  std::erase_if(groups, [&](const std::vector<int>& group) {
    return group.size() == 1 || static_cast<int>(group.size()) == ranks;
  });
  EXPECT_EQ(splits, ranks * static_cast<int>(groups.size()));
}

/// Alone, without the other ranks.
void expect_planned_groups(const GridDegrees& degrees) {
  const Topology topology(degrees.dp * degrees.tp * degrees.pp * degrees.sp, degrees);
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    const std::unique_ptr<Communicator> world = make_planned_world(topology, rank);
    const Mesh mesh(*world, degrees);
    for (const Axis axis : kAxes) {
      const std::vector<int> expected = topology.group(axis, rank);
      ASSERT_EQ(mesh.size(axis), static_cast<int>(expected.size())) << name_of(axis);
      ASSERT_EQ(expected.at(static_cast<std::size_t>(mesh.rank(axis))), rank) << name_of(axis);
    }
  }
}

TEST(Mesh, GroupsAreTheTopologysForEveryFactorisation) {
  for (const int ranks : {1, 2, 3, 4, 6, 8, 12, 16, 24}) {
    for (int tp = 1; tp <= ranks; ++tp) {
      for (int pp = 1; tp * pp <= ranks; ++pp) {
        for (int sp = 1; tp * pp * sp <= ranks; ++sp) {
          if (ranks % (tp * pp * sp) != 0) continue;
          const GridDegrees degrees{.dp = ranks / (tp * pp * sp), .tp = tp, .pp = pp, .sp = sp};
          SCOPED_TRACE(concat("dp ", degrees.dp, ", tp ", tp, ", pp ", pp, ", sp ", sp));
          expect_groups_of_topology(degrees);
          expect_planned_groups(degrees);
        }
      }
    }
  }
}

TEST(Mesh, WithoutDegreesIsDataParallel) {
  run_ranks(3, [](Communicator& world) {
    const Mesh mesh(world);
    EXPECT_EQ(&mesh.group(Axis::dp), &world);
    EXPECT_EQ(&mesh.group(Axis::zero), &world);
    EXPECT_EQ(mesh.size(Axis::model), 1);
    EXPECT_TRUE(mesh.first_of_its_batch());
    EXPECT_EQ(mesh.leads(), world.rank() == 0);
    EXPECT_EQ(mesh.describe(2), "rank 2");
  });
}

TEST(Mesh, OfAnotherSizeThanTheWorldIsRefused) {
  run_ranks(3, [](Communicator& world) { EXPECT_THROW(Mesh(world, {.dp = 2, .tp = 2}), Error); });
}

}  // namespace
}  // namespace zero3d
