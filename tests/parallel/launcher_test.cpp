// What launchers' environments promise, and when a world of one rank breaks it.
#include "zero3d/parallel/comm/launcher.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d {
namespace {

using Environment = std::map<std::string, std::string>;

/// The environment of a launcher alone; what was there comes back.
class Launched {
 public:
  explicit Launched(const Environment& environment) {
    for (const char* name : kNames) {
      if (const char* value = std::getenv(name)) before_.emplace(name, value);
      unsetenv(name);
    }
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Launched() {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE",
                                           "PMI_SIZE",
                                           "PMIX_RANK",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_NTASKS",
                                           "RANK",
                                           "LOCAL_RANK",
                                           "WORLD_SIZE",
                                           "SLURM_LOCALID",
                                           "MPI_LOCALRANKID",
                                           "OMPI_COMM_WORLD_LOCAL_RANK"};
  Environment before_;
};

std::string refusal(const Environment& environment, int ranks = 1) {
  const Launched launched(environment);
  return broken_promise(launch_promise(), ranks);
}

TEST(Launcher, SoloRunsOfALauncherAreRefused) {
  const struct {
    Environment environment;
    const char* told;
  } launches[] = {
      {{{"OMPI_COMM_WORLD_SIZE", "4"}}, "mpirun started 4 processes (OMPI_COMM_WORLD_SIZE=4)"},
      {{{"PMI_SIZE", "3"}}, "mpiexec started 3 processes (PMI_SIZE=3)"},
      {{{"SLURM_STEP_NUM_TASKS", "8"}}, "srun started 8 processes (SLURM_STEP_NUM_TASKS=8)"},
      {{{"PMIX_RANK", "2"}}, "started at least 3 processes (PMIX_RANK=2)"},
      {{{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}}, "torchrun started 2 processes"}};
  for (const auto& launch : launches) {
    const std::string message = refusal(launch.environment);
    EXPECT_NE(message.find(launch.told), std::string::npos) << launch.told << ": " << message;
    EXPECT_NE(message.find("MPI's world has 1 rank"), std::string::npos);
    EXPECT_NE(message.find("mpirun -n"), std::string::npos);
    EXPECT_EQ(refusal(launch.environment, 4), "") << launch.told;
  }
}

TEST(Launcher, WhatPromisesNothing) {
  for (const Environment& environment :
       {Environment{}, Environment{{"PMI_SIZE", "1"}}, Environment{{"PMIX_RANK", "0"}},
        Environment{{"SLURM_NTASKS", "8"}}, Environment{{"SLURM_STEP_NUM_TASKS", "1"}},
        Environment{{"WORLD_SIZE", "8"}}, Environment{{"RANK", "3"}, {"WORLD_SIZE", "8"}},
        Environment{{"PMI_SIZE", "many"}}, Environment{{"PMI_SIZE", "-2"}},
        Environment{{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}},
        // mpirun -n 1 within a step of several tasks.
        Environment{{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}})
    EXPECT_EQ(refusal(environment), "");
}

TEST(LocalRank, IsWhatTheLaunchersOfAMachineSay) {
  const std::vector<RankPlace> ranks{{"a", 1}, {"b", 0}, {"a", 0}, {"b", 1}, {"a", 3}};
  const int expected[] = {1, 0, 0, 1, 3};
  for (int r = 0; r < 5; ++r) EXPECT_EQ(local_rank(ranks, r), expected[r]) << r;
}

TEST(LocalRank, IsTheOrderOfRanksWhereOneIsSaidTwiceOrNot) {
  const std::vector<RankPlace> ranks{{"a", 0}, {"a", 0}, {"b", -1}, {"a", 0}, {"b", 1}};
  const int expected[] = {0, 1, 0, 2, 1};
  for (int r = 0; r < 5; ++r) EXPECT_EQ(local_rank(ranks, r), expected[r]) << r;
}

TEST(LocalRank, IsAskedOfTheEnvironmentAndThePeers) {
  for (const char* variable :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID", "LOCAL_RANK"}) {
    const Launched launched(Environment{{variable, "3"}});
    EXPECT_EQ(local_rank(*make_self_communicator()), 3) << variable;
  }
  const Launched launched(Environment{});
  EXPECT_EQ(local_rank(*make_self_communicator()), 0);
  run_ranks(3, [](Communicator& world) { EXPECT_EQ(local_rank(world), world.rank()); });
}

}  // namespace
}  // namespace zero3d
