#include "zero3d/engine/memory_advice.h"

#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

using Ways = std::vector<std::string>;

constexpr const char* kSmallerMicroBatch = "a smaller micro-batch (train_micro_batch_size_per_gpu)";

bool offloadable(const MemoryHabits& habits) { return habits.trains && !habits.delays_updates; }

void add_activations(const MemoryHabits& habits, Ways& ways) {
  if (habits.trains && !habits.recomputes) ways.emplace_back("recomputation (--recompute)");
  if (habits.micro_batch > 1) ways.emplace_back(kSmallerMicroBatch);
  ways.emplace_back("shorter sequences (--seq-len)");
}

}  // namespace

std::vector<std::string> device_advice(const MemoryHabits& habits) {
  Ways ways;
  const bool optimizer_stays = habits.trains && !habits.optimizer.on();
  const bool parameters_stay = habits.stage < 3 || !habits.parameters.on();
  if (optimizer_stays && habits.stage > 0) ways.emplace_back("offload_optimizer");
  if (habits.trains && habits.optimizer.on() && habits.optimizer.ratio < 1)
    ways.emplace_back("a ratio of 1");
  if (habits.stage == 3 && parameters_stay) ways.emplace_back("offload_param");
  if (habits.stage < 3)
    ways.emplace_back(optimizer_stays && habits.stage == 0
                          ? "ZeRO stage 3 with offload_optimizer and offload_param"
                          : "ZeRO stage 3 with offload_param");
  if (habits.stage > 0 && (optimizer_stays || (habits.stage == 3 && parameters_stay)))
    ways.emplace_back("more ranks");
  const bool stated = habits.tiles.linear > 0 || habits.tiles.head > 0;
  if (habits.can_tile)
    ways.emplace_back(
        stated ? "as many tiles as fit (linear_tiles and head_tiles of the section zero3d left out)"
               : "more tiles (linear_tiles and head_tiles of the section zero3d)");
  if (habits.recomputes && !habits.kept_on_host) ways.emplace_back("cpu_checkpointing");
  add_activations(habits, ways);
  return ways;
}

std::vector<std::string> host_advice(const MemoryHabits& habits) {
  Ways ways;
  const bool optimizer = habits.trains && habits.optimizer.device == OffloadDevice::cpu;
  const bool parameters = habits.parameters.device == OffloadDevice::cpu;
  if (optimizer && offloadable(habits)) ways.emplace_back("offload_optimizer to nvme");
  if (parameters) ways.emplace_back("offload_param to nvme");
  if (optimizer && habits.stage == 3 && habits.optimizer.ratio > 0)
    ways.emplace_back("a smaller ratio");
  if (optimizer || parameters) ways.emplace_back("more ranks");
  if (!habits.kept_on_host) return ways;
  ways.emplace_back("activation_checkpointing without cpu_checkpointing");
  if (habits.micro_batch > 1) ways.emplace_back(kSmallerMicroBatch);
  return ways;
}

std::vector<std::string> machine_advice(const MemoryHabits& habits) {
  Ways ways;
  if (offloadable(habits) && habits.stage > 0 && habits.optimizer.device != OffloadDevice::nvme)
    ways.emplace_back("offload_optimizer to nvme");
  if (habits.stage == 3 && habits.parameters.device != OffloadDevice::nvme)
    ways.emplace_back("offload_param to nvme");
  if (habits.stage < 3) ways.emplace_back("ZeRO stage 3 with offload to nvme");
  if (habits.stage == 0 && habits.replicas > 1) ways.emplace_back("fewer ranks on it");
  if (habits.stage > 0) ways.emplace_back("more ranks, on other machines");
  add_activations(habits, ways);
  ways.emplace_back("a machine with more memory");
  return ways;
}

std::string in_words(const std::vector<std::string>& ways) {
  std::string text;
  for (std::size_t i = 0; i < ways.size(); ++i)
    append_item(text, i + 1 == ways.size() ? " or " : ", ", ways[i]);
  return text;
}

std::string budget_of(std::int64_t bytes) {
  constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  if (bytes < 100 * kKiB) return std::to_string(bytes);
  if (bytes < 100 * kMiB) return concat(ceil_div(bytes, kKiB), "KiB");
  return concat(ceil_div(bytes, kMiB), "MiB");
}

}  // namespace zero3d
