// Whole parameters for the host, between steps: filled from a source, read for exports, written by
// name.
#include <algorithm>
#include <cstring>

#include "zero3d/core/multiples.h"
#include "zero3d/device/parallel.h"
#include "zero3d/engine/zero/parameter_store.h"

namespace zero3d {
namespace {

constexpr std::int64_t kLoadChunk = 1 << 16;  // elements read or drawn by one task
// On their way from the source to a shard.
constexpr std::int64_t kStagingPart = 64;  // of a rank's elements, beside states in host memory
constexpr std::int64_t kLeastStaging = 1 << 12;
constexpr std::int64_t kMostStaging = 1 << 22;

}  // namespace

/// Blocks the host until parameters are where they belong.
void ParameterStore::synchronize() {
  compute_.synchronize();
  if (copy_in_ != nullptr) copy_in_->synchronize();  // shards that the host updates
  if (home_ != nullptr) home_->synchronize();
  for (Stream* copies : {copy_in_, copy_out_})  // an update on the host ends with a copy to here
    if (copies != nullptr) copies->synchronize();
  gather_.synchronize();
}

void ParameterStore::load(const ParameterSource& source,
                          const std::function<bool(int unit)>& wanted) {
  try {
    load_units(source, wanted);
  } catch (...) {
    settle();  // source and staging are about to go
    throw;
  }
}

/// Nothing enqueued is left, whatever became of it.
void ParameterStore::settle() noexcept {
  for (Stream* stream : {&compute_, copy_in_, copy_out_, &gather_}) {
    if (stream == nullptr) continue;
    try {
      stream->synchronize();
    } catch (...) {  // what failed is on its way already
    }
  }
}

std::int64_t ParameterStore::staging_elements(const ParamLayout& layout,
                                              const ParameterStoreOptions& options) {
  std::int64_t largest = 0, all = 0;
  for (const Unit& unit : layout.units()) {
    largest = std::max(largest, unit.shard);
    all += unit.shard;
  }
  const std::int64_t wanted =
      options.host_holds_states
          ? std::clamp(round_up(all / kStagingPart, kLeastStaging), kLeastStaging, kMostStaging)
          : kMostStaging;
  return std::min(largest, wanted);
}

void ParameterStore::load_units(const ParameterSource& source,
                                const std::function<bool(int unit)>& wanted) {
  const Tensor staging(device_.memory(Tier::pinned), compute_, options_.dtype,
                       Shape{staging_elements(layout_, options_)}, Category::gathered_parameters);
  for (int unit = 0; unit < layout_.unit_count(); ++unit)
    if (!wanted || wanted(unit)) publish(unit, load_shard(source, unit, staging));
  gather_published();
  synchronize();
}

/// By way of host memory, as much of it at a time as `staging` holds.
Event ParameterStore::load_shard(const ParameterSource& source, int unit, const View& staging) {
  const std::int64_t shard = layout_.unit(unit).shard;
  Event written;
  compute_.record(written);
  for (std::int64_t done = 0; done < shard; done += staging.numel()) {
    const View piece = staging.flat(0, std::min(staging.numel(), shard - done));
    const std::int64_t begin = groups_.gather->rank() * layout_.unit(unit).shard + done;
    compute_.host_task(
        "load " + layout_.unit(unit).name, {writes(piece)},
        [this, &source, piece, runs = layout_.runs(unit, begin, piece.numel())] {
          std::memset(piece.data(), 0, piece.bytes());  // padding
          for (const ParameterRun& run : runs) {
            const LayoutParameter& p = layout_.parameter(run.parameter);
            parallel_for(run.count, kLoadChunk, [&](std::int64_t first, std::int64_t last) {
              source.read(p.spec, global_runs(p.placement, run.first + first, last - first),
                          piece.flat(run.offset + first, last - first));
            });
          }
        });
    Event filled;
    compute_.record(filled);
    written = update_shard(unit, done, piece, filled);
    compute_.wait(written);
  }
  return written;
}

/// Device memory for a whole unit between passes: its kept copy, the arena, which has the room that
/// a budget may not have beside it, or `own`.
View ParameterStore::room_for_whole(int unit, Stream& stream, Tensor& own) {
  if (!gathers(unit)) return state(unit).whole.view();
  const std::int64_t elements = layout_.unit(unit).padded;
  const bool busy =
      std::any_of(units_.begin(), units_.end(), [](const UnitState& s) { return s.live; });
  if (!busy && arena_.elements() >= elements) return arena_.acquire(stream, 0, elements);
  own = Tensor(device_.memory(), stream, options_.dtype, Shape{elements},
               Category::gathered_parameters);
  return own.view();
}

Tensor ParameterStore::whole_copy(int unit) {
  synchronize();
  Tensor own;
  const View whole = room_for_whole(unit, home_ != nullptr ? *copy_in_ : gather_, own);
  if (gathers(unit)) groups_.gather->all_gather(gather_, bring(unit, whole), whole);
  Tensor host(device_.memory(Tier::pinned), kNoStream, options_.dtype, whole.shape(),
              Category::gathered_parameters);
  device_.copy(gather_, host, whole);
  gather_.synchronize();
  return host;
}

void ParameterStore::with_whole(int unit, const std::function<void(View)>& use) {
  const Tensor host = whole_copy(unit);
  use(device_.host_write(host));
}

void ParameterStore::store_whole(int unit, const ConstView& values, Communicator& replicas,
                                 int writer) {
  Tensor own;
  const View whole = room_for_whole(unit, compute_, own);
  if (replicas.rank() == writer) device_.copy(compute_, whole, values);
  replicas.broadcast(compute_, whole, writer);
  const View piece = own_piece(unit, whole);
  Event written;
  compute_.record(written);
  if (home_ != nullptr || shard(unit).data() != piece.data()) {
    written = update_shard(unit, 0, piece, written);
    compute_.wait(written);
  }
  publish(unit, written);
  gather_published();
  state(unit).secondary_valid = false;
  synchronize();
}

void ParameterStore::move_to(Tier tier) {
  const bool away = tier != Tier::device;
  if (away) arena_ = FencedArena();
  for (int unit = 0; unit < layout_.unit_count(); ++unit) {
    UnitState& s = state(unit);
    if (away) s.secondary.reset();
    s.secondary_valid = false;
    if (s.tier == tier) continue;
    if (s.whole.defined()) s.whole.move_to(device_, gather_, tier);
    if (s.shard.defined()) s.shard.move_to(device_, gather_, tier);
    s.tier = tier;
  }
  if (away) return;
  for (int unit = 0; unit < layout_.unit_count(); ++unit)
    if (gathers(unit)) allocate_secondary(unit);
  if (arena_elements_ > 0) resize_arena(arena_elements_);
}

}  // namespace zero3d
