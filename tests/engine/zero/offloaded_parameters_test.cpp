// Parameters whose shards lie in host memory or on drives: what is gathered has the bits of shards
// that lie on the device, whatever moves them, and the device holds none of them.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/device/readback.h"
#include "zero3d/engine/memory_estimate.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/offload/faulty_port.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

/// Four blocks: shards of odd numbers of 1,024 elements, small parameters, a tied and a frozen one.
std::vector<std::vector<ParameterSpec>> blocks() {
  const auto spec = [](const char* name, std::int64_t numel) {
    ParameterSpec made;
    made.name = name;
    made.shape = Shape{numel};
    made.initial = normal_values(name, 0.5f);
    return made;
  };
  ParameterSpec frozen = spec("frozen", 2500);
  frozen.frozen = true;
  return {{spec("a", 5000), spec("tied", 900)},
          {spec("b", 3000), spec("small", 100), frozen},
          {spec("c", 12000)},
          {spec("d", 1), spec("tied", 900)}};
}

struct Case {
  int ranks = 1;
  DType dtype = DType::f32;
  ShardHomeOptions offload = {};
  int secondary = 1;
  std::int64_t persistent = 0;  ///< Parameters of at most so many elements.
  std::int64_t prefetch = 1 << 30;
};

/// The store of one rank and what it stands on.
struct Rig {
  Rig(const Case& c, Communicator& world)
      : mesh(world),
        layout(
            blocks(),
            {.shards = c.ranks, .persistence = true, .param_persistence_threshold = c.persistent}),
        groups(make_zero_groups(mesh, {c.ranks, c.secondary})),
        options{c.dtype, true, 1 << 30, c.offload} {
    CpuDeviceOptions checked;
    checked.rank = world.rank();
    checked.check_hazards = true;
    checked.poison_on_free = true;
    if (c.persistent > 0) checked.jitter_seed = static_cast<std::uint64_t>(world.rank()) + 1;
    device = make_cpu_device(checked);
    streams = std::make_unique<RankStreams>(*device, true);
    options.offload.io.rank = world.rank();
    store = std::make_unique<ParameterStore>(*device, layout, groups, options, *streams);
    store->load(*make_initial_values_source(7));
    ops = plan_step(stage_of(layout), 1);
    if (!options.fetches(layout)) return;
    plan = plan_fetches(layout, ops,
                        {.prefetch_elements = c.prefetch, .max_live_elements = c.prefetch});
    store->resize_arena(plan.arena_elements);
  }
  ~Rig() { streams.reset(); }  // their work ends before what it uses is gone

  Mesh mesh;
  ParamLayout layout;
  ZeroGroups groups;
  ParameterStoreOptions options;
  std::vector<Op> ops;
  FetchPlan plan;
  std::unique_ptr<Device> device;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<RankStreams> streams;
};

using Bytes = std::vector<std::byte>;

/// All that a pass sees, in order.
void run_pass(Rig& rig, Bytes& seen) {
  std::vector<Tensor> copies;
  rig.store->begin_pass(rig.plan, 0);
  for (const Op& op : rig.ops) {
    if (!uses_parameters(op.kind)) continue;
    for (const ConstView& view : rig.store->acquire(op)) {
      copies.emplace_back(rig.device->memory(Tier::pinned), kNoStream, view.dtype(), view.shape(),
                          Category::other);
      rig.device->copy(*rig.streams->compute, copies.back(), view);
    }
    rig.store->release(op);
  }
  rig.streams->synchronize();
  for (const Tensor& copy : copies) {
    const ConstView bytes = rig.device->host_read(copy);
    seen.insert(seen.end(), bytes.data(), bytes.data() + bytes.bytes());
  }
}

/// Every shard gets new values in pieces of `piece` elements, from device and host memory in turn,
/// by one tensor that is filled again as soon as it may be.
void update(Rig& rig, int round, std::int64_t piece) {
  Stream& compute = *rig.streams->compute;
  rig.store->begin_step(compute);
  int turn = 0;
  for (const Tier tier : {Tier::device, Tier::pinned}) {
    const Tensor values(rig.device->memory(tier), kNoStream, rig.options.dtype, Shape{piece},
                        Category::other);
    for (int unit = 0; unit < rig.layout.unit_count(); ++unit) {
      if (rig.layout.unit(unit).frozen || unit % 2 != (tier == Tier::device ? 0 : 1)) continue;
      const std::int64_t shard = rig.layout.unit(unit).shard;
      Event copied;
      for (std::int64_t begin = 0; begin < shard; begin += piece) {
        const View part = values.view().flat(0, std::min(piece, shard - begin));
        kernels::fill(compute, part,
                      static_cast<float>(1000 * round + 100 * rig.mesh.world().rank() + ++turn));
        Event ready;
        compute.record(ready);
        copied = rig.store->update_shard(unit, begin, part, ready);
        compute.wait(copied);
      }
      rig.store->publish(unit, copied);
    }
    compute.synchronize();
  }
  rig.store->end_step();
}

/// As an optimizer on the host does: it writes the shards themselves on a stream of its own.
void update_in_place(Rig& rig, float value) {
  Stream& writer = *rig.streams->host;
  rig.store->begin_step(writer);
  for (int unit = 0; unit < rig.layout.unit_count(); ++unit) {
    if (rig.layout.unit(unit).frozen) continue;
    kernels::fill(writer, rig.store->shard(unit), value + static_cast<float>(unit));
    Event written;
    writer.record(written);
    rig.store->publish(unit, written);
  }
  rig.store->end_step();
}

/// What an optimizer sees that makes masters of shards: in parts, by one tensor.
void see_shards(Rig& rig, Bytes& seen) {
  constexpr std::int64_t kPiece = 1500;
  const Tensor target(rig.device->memory(), kNoStream, rig.options.dtype, Shape{kPiece},
                      Category::other);
  for (int unit = 0; unit < rig.layout.unit_count(); ++unit) {
    const std::int64_t shard = rig.layout.unit(unit).shard;
    for (std::int64_t begin = 0; begin < shard; begin += kPiece) {
      const View part = target.view().flat(0, std::min(kPiece, shard - begin));
      Event free;
      rig.streams->compute->record(free);
      rig.streams->compute->wait(rig.store->read_shard(unit, begin, part, free));
      const Readback copy(*rig.streams->compute, part);
      const ConstView bytes = copy.wait();
      seen.insert(seen.end(), bytes.data(), bytes.data() + bytes.bytes());
    }
  }
}

void see_whole(Rig& rig, int unit, Bytes& seen) {
  rig.store->with_whole(unit, [&](const View& whole) {
    seen.insert(seen.end(), whole.data(), whole.data() + whole.bytes());
  });
}

/// Writes one whole unit, as an edit by name does.
void edit(Rig& rig, int unit) {
  rig.store->with_whole(unit, [&](const View& whole) {
    std::memset(whole.data(), 0x21, whole.bytes() / 2);
    rig.store->store_whole(unit, whole, rig.mesh.group(Axis::zero), 0);
  });
}

using Look = std::function<void(Rig&)>;

/// What every rank sees, and each of its shards, of a life of the store; with `in_place` an
/// optimizer writes the shards themselves, too.
Bytes life(const Case& c, bool in_place, const Look& look = {}) {
  std::vector<Bytes> seen(static_cast<std::size_t>(c.ranks)), shards(seen);
  run_ranks(c.ranks, [&](Communicator& world) {
    Rig rig(c, world);
    Bytes& mine = seen[static_cast<std::size_t>(world.rank())];
    run_pass(rig, mine);
    update(rig, 1, 1024);
    run_pass(rig, mine);
    update(rig, 2, 3072);
    run_pass(rig, mine);
    if (in_place) update_in_place(rig, 3);
    see_shards(rig, shards[static_cast<std::size_t>(world.rank())]);
    if (in_place) run_pass(rig, mine);
    edit(rig, 1);
    edit(rig, 0);
    run_pass(rig, mine);
    for (int unit = 0; unit < rig.layout.unit_count(); ++unit) see_whole(rig, unit, mine);
    rig.store->begin_pass(rig.plan, 0);
    rig.store->acquire(forward_of(2));  // out of order: on demand
    rig.store->release(forward_of(2));
    rig.streams->synchronize();
    if (look) look(rig);
  });
  for (const Bytes& other : seen) EXPECT_TRUE(other == seen[0]) << "ranks see the same";
  for (const Bytes& own : shards) seen[0].insert(seen[0].end(), own.begin(), own.end());
  return seen[0];
}

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
  EXPECT_LE(rig.device->memory(Tier::pinned).use().categories[Category::gathered_parameters].peak,
            plan[Tier::pinned][Category::gathered_parameters]);
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
