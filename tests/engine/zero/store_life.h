// A parameter store of each rank through all that happens to it: passes, updates in parts and in
// place, reads, edits; and what is seen of it. Streams are checked and, in some cases, jittered.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/parameter_store.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::test {

/// Five blocks: shards of odd numbers of 1,024 elements, small parameters, a tied and a frozen one,
/// one without elements.
inline std::vector<std::vector<ParameterSpec>> blocks() {
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
          {spec("d", 1), spec("tied", 900)},
          {spec("empty", 0)}};
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
    streams = std::make_unique<RankStreams>(*device, StreamsBeside{.offloads = true});
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

/// Copies of parameters on their way to the host.
class Copies {
 public:
  explicit Copies(Rig& rig) : rig_(rig) {}
  void add(const ConstView& view) {
    copies_.emplace_back(rig_.device->memory(Tier::pinned), kNoStream, view.dtype(), view.shape(),
                         Category::other);
    rig_.device->copy(*rig_.streams->compute, copies_.back(), view);
  }
  /// Appends them to `seen`, once all streams are done.
  void collect(Bytes& seen) {
    rig_.streams->synchronize();
    for (const Tensor& copy : copies_) {
      const ConstView bytes = rig_.device->host_read(copy);
      seen.insert(seen.end(), bytes.data(), bytes.data() + bytes.bytes());
    }
    copies_.clear();
  }

 private:
  Rig& rig_;
  std::vector<Tensor> copies_;
};

/// All that a pass sees, in order.
inline void enqueue_pass(Rig& rig, Copies& copies) {
  rig.store->begin_pass(rig.plan, 0);
  for (const Op& op : rig.ops) {
    if (!uses_parameters(op.kind)) continue;
    for (const ConstView& view : rig.store->acquire(op)) copies.add(view);
    rig.store->release(op);
  }
}

inline void run_pass(Rig& rig, Bytes& seen) {
  Copies copies(rig);
  enqueue_pass(rig, copies);
  copies.collect(seen);
}

/// Every shard gets new values in pieces of `piece` elements, from device and host memory in turn,
/// by one tensor that is filled again as soon as it may be.
inline void update(Rig& rig, int round, std::int64_t piece) {
  Stream& compute = *rig.streams->compute;
  rig.store->begin_step(compute);
  int turn = 0;
  for (const Tier tier : {Tier::device, Tier::pinned}) {
    const Tensor values(rig.device->memory(tier), kNoStream, rig.options.dtype, Shape{piece},
                        Category::other);
    for (int unit = 0; unit < rig.layout.unit_count(); ++unit) {
      if (rig.layout.unit(unit).frozen || unit % 2 != (tier == Tier::device ? 0 : 1)) continue;
      const std::int64_t shard = rig.layout.unit(unit).shard;
      if (shard == 0) continue;
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
inline void update_in_place(Rig& rig, float value) {
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
inline void see_shards(Rig& rig, Bytes& seen) {
  constexpr std::int64_t kPiece = 1500;
  Stream& compute = *rig.streams->compute;
  const Tensor target(rig.device->memory(), kNoStream, rig.options.dtype, Shape{kPiece},
                      Category::other);
  Copies copies(rig);
  for (int unit = 0; unit < rig.layout.unit_count(); ++unit) {
    const std::int64_t shard = rig.layout.unit(unit).shard;
    for (std::int64_t begin = 0; begin < shard; begin += kPiece) {
      const View part = target.view().flat(0, std::min(kPiece, shard - begin));
      Event free;
      compute.record(free);
      compute.wait(rig.store->read_shard(unit, begin, part, free));
      copies.add(part);
    }
  }
  copies.collect(seen);
}

/// The same of shards in memory, where they lie: what blocks the host has written them.
inline void see_shards_in_place(Rig& rig, Bytes& seen) {
  Copies copies(rig);
  for (int unit = 0; unit < rig.layout.unit_count(); ++unit) copies.add(rig.store->shard(unit));
  copies.collect(seen);
}

inline void see_whole(Rig& rig, int unit, Bytes& seen) {
  rig.store->with_whole(unit, [&](const View& whole) {
    seen.insert(seen.end(), whole.data(), whole.data() + whole.bytes());
  });
}

/// Writes one whole unit, as an edit by name does.
inline void edit(Rig& rig, int unit) {
  rig.store->with_whole(unit, [&](const View& whole) {
    std::memset(whole.data(), 0x21, whole.bytes() / 2);
    rig.store->store_whole(unit, whole, rig.mesh.group(Axis::zero), 0);
  });
}

using Look = std::function<void(Rig&)>;

/// What every rank sees, and each of its shards, of a life of the store; with `in_place` an
/// optimizer writes the shards themselves, too.
inline Bytes life(const Case& c, bool in_place, const Look& look = {}) {
  std::vector<Bytes> seen(static_cast<std::size_t>(c.ranks)), shards(seen);
  run_ranks(c.ranks, [&](Communicator& world) {
    Rig rig(c, world);
    Bytes& mine = seen[static_cast<std::size_t>(world.rank())];
    Bytes& own = shards[static_cast<std::size_t>(world.rank())];
    const auto see_all = [&] {
      // The last unit may be persistent: nothing else is fetched before it.
      for (int unit = rig.layout.unit_count(); unit-- > 0;) see_whole(rig, unit, mine);
    };
    if (in_place) see_shards_in_place(rig, own);
    run_pass(rig, mine);
    update(rig, 1, 1024);
    run_pass(rig, mine);
    update(rig, 2, 3072);
    see_all();
    Copies copies(rig);
    enqueue_pass(rig, copies);
    // What lies on the device must not be written before the host has heard of the pass.
    if (!c.offload.on()) rig.streams->synchronize();
    if (in_place) update_in_place(rig, 3);
    see_shards(rig, own);
    copies.collect(mine);
    run_pass(rig, mine);
    edit(rig, 1);
    edit(rig, 0);
    if (in_place) see_shards_in_place(rig, own);
    run_pass(rig, mine);
    see_all();
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

}  // namespace zero3d::test
