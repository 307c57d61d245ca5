#include "zero3d/engine/checkpoint/state_writer.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/offload/io_queue.h"

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

bool on_drives(const ShardedModel& model, int unit) {
  return model.train_settings().offload.optimizer.device == OffloadDevice::nvme &&
         model.plan().optimizer.offloads(unit);
}

/// The records of all trainable units.
std::vector<Tile> record_tiles(const ShardedModel& model) {
  const ZeroPlan& plan = model.plan();
  return plan_tiles(plan.layout, tile_sizes(plan.optimizer.tile_elements).record);
}

/// Of a rank's file, by where the state lies.
struct FileBytes {
  std::int64_t memory = 0;
  std::int64_t drives = 0;
  std::int64_t record = 0;  ///< The largest on drives.
};

FileBytes file_bytes(const ShardedModel& model, bool exclude_frozen) {
  const ZeroPlan& plan = model.plan();
  FileBytes bytes;
  const auto add = [&](const Tile& tile, std::span<const DType> dtypes, std::int64_t& sum) {
    const std::int64_t shard = plan.layout.unit(tile.unit).shard;
    for (const ParameterRun& run :
         plan.layout.runs(tile.unit, model.shard_rank() * shard + tile.begin, tile.count))
      for (const DType dtype : dtypes) sum += RankFile::block_bytes(bytes_of(run.count, dtype));
  };
  const std::vector<RecordLayout> records =
      plan_records(plan.layout, model.setup(), plan.optimizer);
  const auto add_states = [&](const Tile& tile, std::int64_t& sum) {
    std::vector<DType> dtypes;
    for (const RecordPart& part : records[static_cast<std::size_t>(tile.unit)].parts())
      dtypes.push_back(part.dtype);
    add(tile, dtypes, sum);
    const DType dtype = plan.dtype();  // of a weight that is its own master
    if (!plan.optimizer.has_master(tile.unit)) add(tile, {&dtype, 1}, bytes.memory);
  };
  for (const Tile& tile : plan_tiles(plan.layout, tile_sizes(plan.optimizer.tile_elements).tile))
    if (owns(model, tile.unit) && !on_drives(model, tile.unit)) add_states(tile, bytes.memory);
  for (const Tile& tile : record_tiles(model)) {
    if (!owns(model, tile.unit) || !on_drives(model, tile.unit)) continue;
    add_states(tile, bytes.drives);
    const RecordLayout& layout = records[static_cast<std::size_t>(tile.unit)];
    bytes.record =
        std::max(bytes.record, layout.offset(tile.begin + tile.count) - layout.offset(tile.begin));
  }
  const DType dtype = plan.dtype();
  for (int unit = 0; unit < plan.layout.unit_count(); ++unit) {
    const Unit& entry = plan.layout.unit(unit);
    if (entry.frozen && owns(model, unit) && !exclude_frozen)
      add({unit, 0, entry.shard}, {&dtype, 1}, bytes.memory);
  }
  return bytes;
}

}  // namespace

SaveMemory StateWriter::plan(const ShardedModel& model, bool exclude_frozen, bool asynchronous,
                             std::int64_t room) {
  const FileBytes bytes = file_bytes(model, exclude_frozen);
  SaveMemory memory;
  if (bytes.memory + bytes.drives == 0) return memory;
  if (!asynchronous) {
    memory.file = RankFile::some_buffers(bytes.memory + bytes.drives, room);
    return memory;
  }
  memory.asynchronous = true;
  if (bytes.memory > 0) memory.file = RankFile::whole_buffers(bytes.memory);
  if (bytes.drives == 0) return memory;
  memory.file += RankFile::some_buffers(bytes.drives, std::numeric_limits<std::int64_t>::max());
  // From 64 KiB on memory begins at a page, as direct I/O wants it.
  memory.records = std::max<std::int64_t>(2 * bytes.record, 64 << 10);
  return memory;
}

StateWriter::StateWriter(ShardedModel& model, const std::string& folder, bool exclude_frozen,
                         const SaveMemory& memory, Tensor kept)
    : model_(model) {
  declare(exclude_frozen);
  if (memory.file == 0) return;
  const std::string name = file_name(model.mesh().world().rank());
  if (!kept.defined() || kept.numel() < memory.file) {
    kept = Tensor();
    kept = Tensor(model.device().memory(Tier::pinned), kNoStream, DType::u8, Shape{memory.file},
                  Category::other);
  }
  file_ = std::make_unique<RankFile>(
      model.device(), (std::filesystem::path(folder) / name).string(), std::move(kept));
  if (memory.asynchronous) file_->hold();
  write_memory(exclude_frozen);
  file_->write_held();
  memory.asynchronous ? copy_drives(memory.records) : write_drives();
  file_->finish();
}

StateWriter::~StateWriter() {
  if (copies_ == nullptr) return;
  try {
    copies_->synchronize();
  } catch (...) {  // a drive has failed, and may still hold them
    keep_for_drives(std::move(records_memory_));
  }
}

void StateWriter::write_memory(bool exclude_frozen) {
  model_.optimizer().for_each_tile(
      false, [&](int unit) { return owns(model_, unit) && !on_drives(model_, unit); },
      [&](const Tile&, std::span<const StateSlice> slices, Stream& stream) {
        while (!slices.empty()) {
          const std::size_t count = same_parameter(slices);
          write_slices(slices.first(count), stream);
          slices = slices.subspan(count);
        }
      });
  for (const Tile& tile : record_tiles(model_))
    if (owns(model_, tile.unit) && on_drives(model_, tile.unit)) write_own_masters(tile);
  const ParamLayout& layout = model_.plan().layout;
  for (int unit = 0; unit < layout.unit_count() && !exclude_frozen; ++unit)
    if (layout.unit(unit).frozen && owns(model_, unit)) write_frozen(unit);
}

/// Weights in memory that have only their states on drives.
void StateWriter::write_own_masters(const Tile& tile) {
  if (model_.plan().optimizer.has_master(tile.unit)) return;
  const ParamLayout& layout = model_.plan().layout;
  const View shard = model_.store().shard(tile.unit);
  const std::int64_t first = model_.shard_rank() * layout.unit(tile.unit).shard + tile.begin;
  for (const ParameterRun& run : layout.runs(tile.unit, first, tile.count)) {
    add_block(run.parameter, run.first, run.count, kWeight, shard.dtype());
    file_->append(model_.optimizer().stream_of(tile.unit),
                  shard.flat(tile.begin + run.offset, run.count));
  }
}

/// Through the slots of the store, in whose order training goes on.
void StateWriter::write_drives() {
  model_.optimizer().for_each_tile(
      false, [&](int unit) { return owns(model_, unit) && on_drives(model_, unit); },
      [&](const Tile&, std::span<const StateSlice> slices, Stream& stream) {
        for (std::size_t i = 0; i < slices.size(); ++i) write_slices(slices.subspan(i, 1), stream);
      });
}

/// The same bytes of the file through records of its own, on a stream of its own.
void StateWriter::copy_drives(std::int64_t bytes) {
  if (bytes == 0) return;
  Device& device = model_.device();
  records_memory_ =
      Tensor(device.memory(Tier::pinned), kNoStream, DType::u8, Shape{bytes}, Category::other);
  const std::int64_t half = bytes / 2 / RecordLayout::kAlignment * RecordLayout::kAlignment;
  for (std::size_t i = 0; i < records_.size(); ++i)
    records_[i].bytes = records_memory_.view().flat(static_cast<std::int64_t>(i) * half, half);
  copies_ = device.create_host_stream("checkpoint copies");
  ShardedOptimizer& optimizer = model_.optimizer();
  std::size_t next = 0;
  for (const Tile& tile : record_tiles(model_)) {
    if (!owns(model_, tile.unit) || !on_drives(model_, tile.unit)) continue;
    Record& record = records_[next++ % records_.size()];
    const View target = record.bytes.flat(0, optimizer.snapshot_bytes(tile));
    copies_->wait(optimizer.snapshot(tile, target, record.free));
    const std::vector<StateSlice> slices = optimizer.snapshot_slices(tile, target);
    for (std::size_t i = 0; i < slices.size(); ++i)
      write_slices(std::span(slices).subspan(i, 1), *copies_);
    record.free = Event();
    copies_->record(record.free);
  }
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

/// `slices` of one parameter, in a row.
void StateWriter::write_slices(std::span<const StateSlice> slices, Stream& stream) {
  const StateSlice& front = slices.front();
  const std::int64_t count = slices.back().first + slices.back().count - front.first;
  const auto write = [&](std::string_view tensor, const auto& view_of) {
    add_block(front.parameter, front.first, count, tensor, view_of(front).dtype());
    for (const StateSlice& slice : slices) file_->append(stream, view_of(slice));
  };
  if (front.master.defined() || !on_drives(model_, front.unit))
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
