// Parameters whose shards lie in host memory or on drives: what is gathered has the bits of shards
// that lie on the device, whatever moves them, and the device holds none of them.
#include <gtest/gtest.h>

#include <cerrno>

#include "store_life.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/memory_estimate.h"
#include "zero3d/tests/offload/faulty_port.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

std::string name_of(const Case& c) {
  const ParameterOffload& to = c.offload.to;
  return concat(c.ranks, " ranks, ", zero3d::name_of(c.dtype), ", secondary ", c.secondary,
                ", persistent ", c.persistent, ", prefetch ", c.prefetch, ", device ",
                static_cast<int>(to.device), ", buffers ", to.buffer_count, " of ",
                to.buffer_elements, ", max_in_cpu ", to.max_in_cpu);
}

std::vector<Case> shapes() {
  std::vector<Case> all;
  for (const int ranks : {1, 2}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (kSanitized && dtype == DType::f32) continue;
      for (const std::int64_t persistent : {0, 1000})
        all.push_back({.ranks = ranks, .dtype = dtype, .persistent = persistent});
    }
  }
  all.push_back({.ranks = 2, .prefetch = 0});
  all.push_back({.ranks = 4, .dtype = DType::bf16, .secondary = 2, .persistent = 100});
  return all;
}

ShardHomeOptions to_cpu(bool pinned) {
  ShardHomeOptions offload;
  offload.to.device = OffloadDevice::cpu;
  offload.to.pin_memory = pinned;
  return offload;
}

ShardHomeOptions to_nvme(const TemporaryFolder& folder, int buffers, std::int64_t elements,
                         std::int64_t in_cpu) {
  ShardHomeOptions offload;
  offload.to.device = OffloadDevice::nvme;
  offload.to.paths = {folder.file("a"), folder.file("b")};
  offload.to.buffer_count = buffers;
  offload.to.buffer_elements = elements;
  offload.to.max_in_cpu = in_cpu;
  offload.io.block_size = 8192;
  return offload;
}

/// The store of `c` holds nothing on the device but kept and secondary copies, and what the plan
/// says on the host.
void expect_planned_memory(const Case& c, Rig& rig) {
  MemoryInputs inputs{rig.options, {}};
  inputs.secondary_ranks = c.secondary;
  const MemoryEstimate plan = estimate_static_memory(rig.layout, BucketPlan(), inputs);
  std::int64_t kept = 0;
  for (const Unit& unit : rig.layout.units())
    if (unit.persistent || c.secondary > 1)
      kept += bytes_of(unit.persistent ? unit.padded : unit.padded / c.secondary, c.dtype);
  EXPECT_EQ(plan[Tier::device][Category::parameters], kept);
  for (const Tier tier : {Tier::device, Tier::pinned, Tier::pageable}) {
    const MemoryUse use = rig.device->memory(tier).use();
    EXPECT_EQ(use.categories[Category::parameters].peak, plan[tier][Category::parameters])
        << zero3d::name_of(tier);
    EXPECT_EQ(use.categories[Category::parameters].current, plan[tier][Category::parameters]);
  }
  std::int64_t largest = 0;  // read whole by the host
  for (const Unit& unit : rig.layout.units()) largest = std::max(largest, unit.padded);
  EXPECT_LE(
      rig.device->memory(Tier::pinned).use().categories[Category::gathered_parameters].peak,
      std::max(bytes_of(largest, c.dtype), plan[Tier::pinned][Category::gathered_parameters]));
}

TEST(OffloadedParameters, InHostMemoryHaveTheBitsOfTheDevice) {
  const LogCapture log;
  for (Case c : shapes()) {
    const Bytes resident = life(c, true);
    for (const bool pinned : {true, false}) {
      c.offload = to_cpu(pinned);
      SCOPED_TRACE(name_of(c));
      const Bytes moved = life(c, true, [&](Rig& rig) {
        EXPECT_TRUE(rig.store->shard_in_memory());
        EXPECT_EQ(rig.store->shard_tier(), pinned ? Tier::pinned : Tier::pageable);
        expect_planned_memory(c, rig);
      });
      EXPECT_TRUE(moved == resident);
    }
  }
}

TEST(OffloadedParameters, OnDrivesHaveTheBitsOfTheDevice) {
  const LogCapture log;
  const TemporaryFolder folder;
  struct Knobs {
    int buffers;
    std::int64_t elements, in_cpu;
  };
  int turn = 0;
  for (Case c : shapes()) {
    const Bytes resident = life(c, false);
    // Buffers much smaller than shards, of an odd number of half pages, and larger; all units on
    // the drive, some, none.
    for (const Knobs& knobs : {Knobs{1, 1000, 0}, Knobs{3, 3072, 4096}, Knobs{5, 1 << 30, 0},
                               Knobs{2, 1 << 30, 1 << 30}}) {
      c.offload = to_nvme(folder, knobs.buffers, knobs.elements, knobs.in_cpu);
      c.offload.checksums = turn % 2 == 0;
      c.offload.io.port = turn % 4 < 2 && has_ring() ? make_ring_port : make_thread_port;
      ++turn;
      SCOPED_TRACE(name_of(c));
      const Bytes moved = life(c, false, [&](Rig& rig) {
        EXPECT_FALSE(rig.store->shard_in_memory());
        expect_planned_memory(c, rig);
      });
      EXPECT_TRUE(moved == resident);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("a"))) << "nothing is left behind";
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("b")));
}

TEST(OffloadedParameters, AFailingDriveEndsEveryRank) {
  const LogCapture log;
  for (const bool write : {true, false}) {
    const TemporaryFolder folder;
    const auto faults = std::make_shared<Faults>();
    faults->from = 40;
    (write ? faults->reads : faults->writes) = false;
    faults->code = write ? ENOSPC : EIO;
    const std::int64_t begin = now_ns();
    const std::string message = message_of<Error>([&] {
      run_ranks(2, [&](Communicator& world) {
        Case c{.ranks = 2, .offload = to_nvme(folder, 2, 2048, 0)};
        // One rank's drive fails.
        if (world.rank() == 1) c.offload.io.port = faulty(faults, make_thread_port);
        Rig rig(c, world);
        fail_together(world, [&] {
          Bytes seen;
          for (int step = 0; step < 50; ++step) {
            run_pass(rig, seen);
            update(rig, step, 2048);
          }
        });
      });
    });
    EXPECT_LT(now_ns() - begin, 5'000'000'000);
    EXPECT_NE(message.find("parameters-1"), std::string::npos) << message;
    EXPECT_NE(message.find(write ? ": cannot write " : ": cannot read "), std::string::npos)
        << message;
    EXPECT_NE(message.find(" at offset "), std::string::npos) << message;
    EXPECT_NE(message.find(write ? "(No space left on device)" : "(Input/output error)"),
              std::string::npos)
        << message;
  }
}

/// One unit is on the drive, and written once: nobody but load() can tell.
TEST(OffloadedParameters, LoadTellsThatTheDriveDidNotTakeThem) {
  const TemporaryFolder folder;
  const auto faults = std::make_shared<Faults>();
  faults->code = EIO;
  const std::string message = message_of<Error>([&] {
    run_ranks(1, [&](Communicator& world) {
      Case c{.offload = to_nvme(folder, 1, 1 << 30, 14336)};
      c.offload.io.port = faulty(faults, make_thread_port);
      Rig rig(c, world);
    });
  });
  EXPECT_NE(message.find("parameters-0: cannot write "), std::string::npos) << message;
}

TEST(OffloadedParameters, AShardOnADriveIsNotHandedOut) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Communicator& world) {
    Rig rig({.offload = to_nvme(folder, 1, 1024, 1 << 12)}, world);
    EXPECT_EQ(message_of<Error>([&] { rig.store->shard(0); }),
              "the shard of unit 0 lies on a drive; update it by update_shard()");
  });
}

}  // namespace
}  // namespace zero3d::test
