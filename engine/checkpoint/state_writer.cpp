#include "zero3d/engine/checkpoint/state_writer.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "zero3d/engine/zero/update_plan.h"

namespace zero3d {
namespace {

std::string file_name(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d.bin", rank);
  return name;
}

bool owns(const ShardedModel& model, int unit) {
  return model.part().owner[static_cast<std::size_t>(unit)];
}

/// Slices of one parameter, one after the other.
std::size_t same_parameter(std::span<const StateSlice> slices) {
  std::size_t count = 1;
  while (count < slices.size() && slices[count].parameter == slices[0].parameter) ++count;
  return count;
}

}  // namespace

std::int64_t StateWriter::file_bytes(const ShardedModel& model, bool exclude_frozen) {
  const ZeroPlan& plan = model.plan();
  const std::int64_t shard_rank = model.shard_rank();
  std::int64_t bytes = 0;
  const auto add = [&](const Tile& tile, std::span<const DType> dtypes) {
    const std::int64_t shard = plan.layout.unit(tile.unit).shard;
    for (const ParameterRun& run :
         plan.layout.runs(tile.unit, shard_rank * shard + tile.begin, tile.count))
      for (const DType dtype : dtypes) bytes += RankFile::block_bytes(bytes_of(run.count, dtype));
  };
  const std::vector<RecordLayout> records =
      plan_records(plan.layout, model.setup(), plan.optimizer);
  for (const Tile& tile : plan_tiles(plan.layout, tile_sizes(plan.optimizer.tile_elements).tile)) {
    if (!owns(model, tile.unit)) continue;
    std::vector<DType> dtypes;
    for (const RecordPart& part : records[static_cast<std::size_t>(tile.unit)].parts())
      dtypes.push_back(part.dtype);
    dtypes.push_back(plan.dtype());
    add(tile, dtypes);
  }
  for (int unit = 0; unit < plan.layout.unit_count(); ++unit) {
    const Unit& entry = plan.layout.unit(unit);
    const DType dtype = plan.dtype();
    if (entry.frozen && owns(model, unit) && !exclude_frozen)
      add({unit, 0, entry.shard}, {&dtype, 1});
  }
  return bytes;
}

std::int64_t StateWriter::whole_bytes(ShardedModel& model, bool exclude_frozen) {
  return RankFile::buffer_bytes(model.device().memory(Tier::pinned).available(),
                                file_bytes(model, exclude_frozen), true);
}

StateWriter::StateWriter(ShardedModel& model, const std::string& folder, bool exclude_frozen,
                         bool whole)
    : model_(model) {
  declare(exclude_frozen);
  const std::int64_t bytes = file_bytes(model, exclude_frozen);
  if (bytes == 0) return;
  const std::string name = file_name(model.mesh().world().rank());
  file_ = std::make_unique<RankFile>(model.device(),
                                     (std::filesystem::path(folder) / name).string(), bytes, whole);
  const ParamLayout& layout = model.plan().layout;
  model.optimizer().for_each_tile(
      false, [&](int unit) { return owns(model_, unit); },
      [&](const Tile&, std::span<const StateSlice> slices, Stream& stream) {
        while (!slices.empty()) {
          const std::size_t count = same_parameter(slices);
          write_tile(slices.first(count), stream);
          slices = slices.subspan(count);
        }
      });
  for (int unit = 0; unit < layout.unit_count() && !exclude_frozen; ++unit)
    if (layout.unit(unit).frozen && owns(model, unit)) write_frozen(unit);
  file_->finish();
}

/// All parameters of this rank's part of the model, in its order.
void StateWriter::declare(bool exclude_frozen) {
  const ParamLayout& layout = model_.plan().layout;
  const ShardedOptimizerOptions& options = model_.plan().optimizer;
  for (const std::vector<int>& pieces : layout.wholes()) {
    const LayoutParameter& parameter = layout.parameter(pieces.front());
    SavedParameter entry;
    entry.name = parameter.spec.name;
    entry.shape = parameter.spec.shape;
    entry.frozen = parameter.spec.frozen;
    if (!entry.frozen) {
      const UpdateRule& rule = model_.setup().rule(parameter.group);
      entry.rule = rule.name();
      for (const StateSpec& state : rule.states())
        entry.tensors.emplace(state.name, state.may_be_bf16 ? options.moment_dtype : DType::f32);
    }
    const bool has_master = !entry.frozen && options.has_master(parameter.unit);
    if (!entry.frozen || !exclude_frozen)
      entry.tensors.emplace(kWeight, has_master ? options.master_dtype : model_.plan().dtype());
    manifest_.parameters.push_back(std::move(entry));
    manifest_.pieces.emplace_back();
  }
}

/// A block of the file is about to hold these elements of the stored parameter.
void StateWriter::add_block(int parameter, std::int64_t first, std::int64_t count,
                            std::string_view tensor, DType dtype) {
  const LayoutParameter& p = model_.plan().layout.parameter(parameter);
  std::vector<Piece>& all =
      manifest_.pieces[static_cast<std::size_t>(p.whole)][std::string(tensor)];
  const std::vector<Piece> pieces =
      pieces_of(global_runs(p.placement, first, count), 0, file_->begin_block(),
                static_cast<std::int64_t>(size_of(dtype)));
  all.insert(all.end(), pieces.begin(), pieces.end());
}

/// `slices` of one parameter and tile.
void StateWriter::write_tile(std::span<const StateSlice> slices, Stream& stream) {
  const StateSlice& front = slices.front();
  const std::int64_t count = slices.back().first + slices.back().count - front.first;
  const auto write = [&](std::string_view tensor, const auto& view_of) {
    add_block(front.parameter, front.first, count, tensor, view_of(front).dtype());
    for (const StateSlice& slice : slices) file_->append(stream, view_of(slice));
  };
  write(kWeight, [&](const StateSlice& slice) {
    if (slice.master.defined()) return slice.master;
    return model_.store().shard(slice.unit).flat(slice.begin, slice.count);
  });
  const int group = model_.plan().layout.unit(front.unit).group;
  const std::vector<StateSpec> states = model_.setup().rule(group).states();
  for (std::size_t i = 0; i < states.size(); ++i)
    write(states[i].name, [i](const StateSlice& slice) { return slice.states[i]; });
}

void StateWriter::write_frozen(int unit) {
  ParameterStore& store = model_.store();
  const ParamLayout& layout = model_.plan().layout;
  const std::int64_t shard = layout.unit(unit).shard;
  const DType dtype = model_.plan().dtype();
  for (const ParameterRun& run : layout.runs(unit, store.shard_rank() * shard, shard)) {
    add_block(run.parameter, run.first, run.count, kWeight, dtype);
    if (store.shard_in_memory()) {
      file_->append(model_.compute(), store.shard(unit).flat(run.offset, run.count));
      continue;
    }
    file_->append(bytes_of(run.count, dtype), dtype,
                  [&](std::int64_t first, const View& target, const Event& free) {
                    return store.read_shard(unit, run.offset + first, target, free);
                  });
  }
}

CheckpointManifest StateWriter::wait() {
  if (file_ != nullptr) manifest_.files.push_back(file_->wait());
  return std::move(manifest_);
}

}  // namespace zero3d
