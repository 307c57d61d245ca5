// What a refusal for want of memory says: only what is not done already and would help.
#include "zero3d/engine/memory_advice.h"

#include <gtest/gtest.h>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

struct Habits {
  int stage = 3;
  OffloadDevice optimizer = OffloadDevice::none;
  OffloadDevice parameters = OffloadDevice::none;
  bool recomputes = false;
  bool kept_on_host = false;
  std::int64_t micro_batch = 1;
  TileSettings tiles;
  double ratio = 1;
  bool delays = false;
  bool trains = true;
  int replicas = 1;
  bool can_tile = false;
};

MemoryHabits made(const Habits& h) {
  MemoryHabits habits;
  habits.stage = h.stage;
  habits.optimizer.device = h.optimizer;
  habits.optimizer.ratio = h.ratio;
  habits.parameters.device = h.parameters;
  habits.recomputes = h.recomputes;
  habits.kept_on_host = h.kept_on_host;
  habits.micro_batch = h.micro_batch;
  habits.can_tile = h.can_tile;
  habits.tiles = h.tiles;
  habits.delays_updates = h.delays;
  habits.trains = h.trains;
  habits.replicas = h.replicas;
  return habits;
}

using Ways = std::vector<std::string>;
constexpr OffloadDevice kCpu = OffloadDevice::cpu;
constexpr OffloadDevice kNvme = OffloadDevice::nvme;
const std::string kRecompute = "recomputation (--recompute)";
const std::string kShorter = "shorter sequences (--seq-len)";
const std::string kSmaller = "a smaller micro-batch (train_micro_batch_size_per_gpu)";

TEST(MemoryAdvice, OfTheDevice) {
  const struct {
    Habits habits;
    Ways ways;
  } rows[] = {
      {{}, {"offload_optimizer", "offload_param", "more ranks", kRecompute, kShorter}},
      {{.stage = 0},
       {"ZeRO stage 3 with offload_optimizer and offload_param", kRecompute, kShorter}},
      {{.stage = 2, .optimizer = kCpu}, {"ZeRO stage 3 with offload_param", kRecompute, kShorter}},
      {{.optimizer = kCpu, .ratio = 0.5},
       {"a ratio of 1", "offload_param", "more ranks", kRecompute, kShorter}},
      {{.optimizer = kNvme, .parameters = kNvme, .micro_batch = 4},
       {kRecompute, kSmaller, kShorter}},
      {{.optimizer = kCpu, .parameters = kCpu, .recomputes = true},
       {"cpu_checkpointing", kShorter}},
      {{.optimizer = kCpu, .parameters = kCpu, .recomputes = true, .kept_on_host = true},
       {kShorter}},
      {{.optimizer = kCpu,
        .parameters = kCpu,
        .recomputes = true,
        .kept_on_host = true,
        .tiles = {1, 1},
        .can_tile = true},
       {"as many tiles as fit (linear_tiles and head_tiles of the section zero3d left out)",
        kShorter}},
      {{.optimizer = kCpu,
        .parameters = kCpu,
        .recomputes = true,
        .kept_on_host = true,
        .can_tile = true},
       {"more tiles (linear_tiles and head_tiles of the section zero3d)", kShorter}},
      {{.parameters = kCpu, .trains = false}, {kShorter}},
  };
  for (const auto& row : rows) EXPECT_EQ(device_advice(made(row.habits)), row.ways);
}

TEST(MemoryAdvice, OfTheHost) {
  const struct {
    Habits habits;
    Ways ways;
  } rows[] = {
      {{}, {}},
      {{.stage = 2, .optimizer = kCpu}, {"offload_optimizer to nvme", "more ranks"}},
      {{.optimizer = kCpu, .parameters = kCpu},
       {"offload_optimizer to nvme", "offload_param to nvme", "a smaller ratio", "more ranks"}},
      {{.optimizer = kNvme, .parameters = kCpu}, {"offload_param to nvme", "more ranks"}},
      {{.optimizer = kNvme, .parameters = kNvme}, {}},
      {{.stage = 2, .optimizer = kCpu, .delays = true}, {"more ranks"}},
      {{.recomputes = true, .kept_on_host = true, .micro_batch = 2},
       {"activation_checkpointing without cpu_checkpointing", kSmaller}},
  };
  for (const auto& row : rows) EXPECT_EQ(host_advice(made(row.habits)), row.ways);
}

TEST(MemoryAdvice, OfTheMachine) {
  const std::string other = "a machine with more memory";
  const std::string ranks = "more ranks, on other machines";
  const struct {
    Habits habits;
    Ways ways;
  } rows[] = {
      {{.stage = 0, .replicas = 2},
       {"ZeRO stage 3 with offload to nvme", "fewer ranks on it", kRecompute, kShorter, other}},
      {{.optimizer = kCpu, .parameters = kNvme},
       {"offload_optimizer to nvme", ranks, kRecompute, kShorter, other}},
      {{.optimizer = kNvme, .parameters = kNvme, .recomputes = true, .micro_batch = 2},
       {ranks, kSmaller, kShorter, other}},
  };
  for (const auto& row : rows) EXPECT_EQ(machine_advice(made(row.habits)), row.ways);
}

TEST(MemoryAdvice, ABudgetIsNeverLessThanTheNeed) {
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{307'201}, std::int64_t{99'999'999},
                                   std::int64_t{104'857'601}, std::int64_t{5'000'000'000}}) {
    const std::int64_t named = parse_bytes(budget_of(bytes));
    EXPECT_GE(named, bytes) << budget_of(bytes);
    EXPECT_LE(named, bytes + bytes / 50) << budget_of(bytes);
  }
  EXPECT_EQ(in_words({"a"}), "a");
  EXPECT_EQ(in_words({"a", "b", "c"}), "a, b or c");
}

}  // namespace
}  // namespace zero3d
