#include "zero3d/device/cpu/arena_resource.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

namespace zero3d {
namespace {

constexpr std::size_t kReserve = std::size_t{64} << 20;

TEST(ArenaResource, BlocksAreAlignedDisjointAndKeepTheirBytes) {
  ArenaResource arena(kReserve);
  struct Block {
    std::size_t bytes;
    unsigned char mark;
  };
  std::map<std::uintptr_t, Block> live;
  std::minstd_rand random(7);
  const auto check_and_free = [&](std::map<std::uintptr_t, Block>::iterator block) {
    const auto* data = reinterpret_cast<const unsigned char*>(block->first);
    for (std::size_t i = 0; i < block->second.bytes; i += 61)
      ASSERT_EQ(data[i], block->second.mark);
    arena.deallocate(reinterpret_cast<void*>(block->first), block->second.bytes);
    live.erase(block);
  };
  for (int step = 0; step < 5000; ++step) {
    if (live.size() < 60 && random() % 3 != 0) {
      const std::size_t bytes = random() % 2 == 0 ? random() % 300 : random() % 200000;
      const auto begin = reinterpret_cast<std::uintptr_t>(arena.allocate(bytes));
      ASSERT_EQ(begin % (bytes >= ArenaResource::kPageBlock ? ArenaResource::kPage : 64), 0u);
      const auto above = live.lower_bound(begin);
      if (above != live.end()) {
        ASSERT_LE(begin + std::max<std::size_t>(bytes, 1), above->first);
      }
      if (above != live.begin()) {
        const auto below = std::prev(above);
        ASSERT_LE(below->first + std::max<std::size_t>(below->second.bytes, 1), begin);
      }
      const auto mark = static_cast<unsigned char>(step);
      std::memset(reinterpret_cast<void*>(begin), mark, bytes);
      live[begin] = {bytes, mark};
    } else if (!live.empty()) {
      check_and_free(std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size())));
    }
  }
  while (!live.empty()) check_and_free(live.begin());
  EXPECT_EQ(arena.free_blocks(), 1u) << "neighbours must merge";
}

TEST(ArenaResource, AStepRepeatedTouchesNoNewMemory) {
  ArenaResource arena(kReserve);
  std::size_t first = 0;
  std::size_t peak = 0;
  for (int step = 0; step < 20; ++step) {
    std::minstd_rand random(3);
    std::vector<std::pair<void*, std::size_t>> stash;
    std::size_t use = 0;
    for (int block = 0; block < 40; ++block) {  // forward: stash activations, gather and drop units
      const std::size_t unit = 50000 + random() % 100000;
      const std::size_t activation = 1000 + random() % 60000;
      void* gathered = arena.allocate(unit);
      stash.emplace_back(arena.allocate(activation), activation);
      use += activation;
      peak = std::max(peak, use + unit);
      arena.deallocate(gathered, unit);
    }
    while (!stash.empty()) {
      arena.deallocate(stash.back().first, stash.back().second);
      stash.pop_back();
    }
    if (step == 0) first = arena.touched_bytes();
    EXPECT_EQ(arena.touched_bytes(), first);
  }
  EXPECT_LE(first, peak + peak / 4);
}

TEST(ArenaResource, GrowsPastItsFirstRange) {
  ArenaResource arena(std::size_t{2} << 20);
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) {
    blocks.push_back(arena.allocate(1500000));
    std::memset(blocks.back(), i, 1500000);
  }
  void* large = arena.allocate(std::size_t{20} << 20);
  std::memset(large, 1, std::size_t{20} << 20);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(static_cast<const unsigned char*>(blocks[static_cast<std::size_t>(i)])[1499999], i);
    arena.deallocate(blocks[static_cast<std::size_t>(i)], 1500000);
  }
  arena.deallocate(large, std::size_t{20} << 20);
}

TEST(ArenaResource, ReservesAsMuchAsItHasAlready) {
  ArenaResource arena(kReserve);
  std::size_t used = 0;
  for (int i = 0; i < 200; ++i) {
    arena.allocate(std::size_t{10} << 20);
    used += std::size_t{10} << 20;
    EXPECT_LE(arena.reserved_bytes(), std::max(kReserve, 2 * used + kReserve));
  }
}

TEST(ArenaResource, RefusesWhatNoAddressSpaceHolds) {
  ArenaResource arena(kReserve);
  EXPECT_THROW(arena.allocate(std::size_t{1} << 62), OutOfMemory);
  void* data = arena.allocate(100);
  std::memset(data, 1, 100);
  arena.deallocate(data, 100);
}

}  // namespace
}  // namespace zero3d
