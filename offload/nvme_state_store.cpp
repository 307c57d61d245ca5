#include "zero3d/offload/nvme_state_store.h"

#include <algorithm>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"
#include "zero3d/offload/swap_folder.h"

namespace zero3d {
namespace {

/// Bytes of the largest tile's records.
std::int64_t largest_tile(const std::vector<RecordLayout>& records, std::int64_t tile_elements) {
  std::int64_t largest = 0;
  for (const RecordLayout& unit : records) {
    std::int64_t elements = unit.elements();
    if (tile_elements > 0)
      elements = std::min(elements, round_up(tile_elements, unit.record_elements()));
    largest = std::max(largest, unit.offset(elements));
  }
  return largest;
}

bool overlap(const Tile& a, const Tile& b) {
  return a.unit == b.unit && a.begin < b.begin + b.count && b.begin < a.begin + a.count;
}

std::string file_name(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

class NvmeStateStore final : public StateStore {
 public:
  NvmeStateStore(Device& device, const std::vector<RecordLayout>& records,
                 const NvmeStateOptions& options);
  ~NvmeStateStore() override;

  int slots() const override { return static_cast<int>(slots_.size()); }
  int window() const override { return read_ahead_ ? slots() : 1; }
  View open(int slot, const Tile& tile, Event& ready, bool contents) override;
  void close(int slot, const Tile& tile, const Event& used, bool changed) override;
  bool on_drives() const override { return true; }
  Event snapshot(const Tile& tile, const View& target, const Event& free) override;
  IoCounters counters() const override { return queue_->counters(); }

 private:
  struct Unit {
    SwapFolder::Place place;
    std::vector<char> written;             ///< By record.
    std::vector<std::uint64_t> checksums;  ///< By page; empty: none are kept.
  };
  struct Slot {
    View bytes;
    Tile tile;      ///< That was written from it last.
    Event written;  ///< The end of that.
    Event used;     ///< The end of the last work on a tile that it left as it was.
  };
  /// What snapshot() reads.
  struct Copy {
    Tile tile;
    Event done;
  };

  void make_slots(Device& device, const NvmeStateOptions& options);
  void place_units(const NvmeStateOptions& options);
  const RecordLayout& layout(const Tile& tile) const {
    return records_[static_cast<std::size_t>(tile.unit)];
  }
  std::span<char> written(const Tile& tile);
  IoTransfer transfer(const View& memory, const Tile& tile, bool write);
  const View& bytes_of(int slot) const { return slots_[static_cast<std::size_t>(slot)].bytes; }
  /// The writes that this slot's memory and this tile's bytes on the drive still wait for.
  std::vector<Event> before(int slot, const Tile& tile) const;
  /// The host learns of an error at its next call.
  void raise() const;

  const std::vector<RecordLayout>& records_;
  const bool read_ahead_;
  const bool write_behind_;
  std::vector<Unit> units_;
  std::unique_ptr<SwapFolder> folder_;
  Tensor memory_;
  std::vector<Slot> slots_;
  std::vector<Copy> copies_;  ///< That may not be over yet.
  std::unique_ptr<IoQueue> queue_;
};

NvmeStateStore::NvmeStateStore(Device& device, const std::vector<RecordLayout>& records,
                               const NvmeStateOptions& options)
    : records_(records), read_ahead_(options.read_ahead), write_behind_(options.write_behind) {
  place_units(options);
  make_slots(device, options);
  std::vector<View> buffers;
  if (memory_.defined()) buffers.push_back(memory_.view());
  queue_ = std::make_unique<IoQueue>(device, options.name, options.io, folder_->files(), buffers);
}

void NvmeStateStore::place_units(const NvmeStateOptions& options) {
  std::vector<std::int64_t> sizes;
  for (const RecordLayout& unit : records_) sizes.push_back(unit.bytes());
  folder_ = std::make_unique<SwapFolder>(
      options.paths, concat(file_name(options.name), "-", options.io.rank), options.direct);
  const std::vector<SwapFolder::Place> places =
      folder_->reserve(sizes, concat("the ", options.name, " of rank ", options.io.rank));
  for (std::size_t i = 0; i < records_.size(); ++i) {
    Unit& unit = units_.emplace_back();
    unit.place = places[i];
    unit.written.resize(
        static_cast<std::size_t>(ceil_div(records_[i].elements(), records_[i].record_elements())));
    if (options.checksums)
      unit.checksums.resize(static_cast<std::size_t>(sizes[i] / IoTransfer::kPage));
  }
}

void NvmeStateStore::make_slots(Device& device, const NvmeStateOptions& options) {
  if (options.buffer_count < 1)
    throw_invalid(
        concat("offload_optimizer.buffer_count is ", options.buffer_count, "; expected 1 or more"));
  const std::int64_t largest = largest_tile(records_, options.tile_elements);
  slots_.resize(static_cast<std::size_t>(options.buffer_count));
  if (largest == 0) return;
  memory_ = Tensor(device.memory(options.tier), kNoStream, DType::u8,
                   Shape{slot_bytes(records_, options.tile_elements, options.buffer_count)},
                   options.category);
  for (std::size_t slot = 0; slot < slots_.size(); ++slot)
    slots_[slot].bytes = memory_.view().flat(static_cast<std::int64_t>(slot) * largest, largest);
}

NvmeStateStore::~NvmeStateStore() {
  if (!queue_->drain()) keep_for_drives(std::move(memory_));
}

void NvmeStateStore::raise() const {
  if (const std::exception_ptr error = queue_->error()) std::rethrow_exception(error);
}

std::span<char> NvmeStateStore::written(const Tile& tile) {
  const std::int64_t record = layout(tile).record_elements();
  const std::int64_t begin = tile.begin / record;
  const std::int64_t end = ceil_div(tile.begin + tile.count, record);
  return std::span(units_[static_cast<std::size_t>(tile.unit)].written)
      .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

IoTransfer NvmeStateStore::transfer(const View& memory, const Tile& tile, bool write) {
  Unit& unit = units_[static_cast<std::size_t>(tile.unit)];
  const std::int64_t begin = layout(tile).offset(tile.begin);
  const std::int64_t bytes = layout(tile).offset(tile.begin + tile.count) - begin;
  ZERO3D_CHECK(bytes <= memory.numel(), "a tile is no larger than a slot");
  IoTransfer moved{write, unit.place.file, unit.place.offset + begin, memory.flat(0, bytes),
                   nullptr};
  if (!unit.checksums.empty()) moved.checksums = unit.checksums.data() + begin / IoTransfer::kPage;
  return moved;
}

std::vector<Event> NvmeStateStore::before(int slot, const Tile& tile) const {
  std::vector<Event> events;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& other = slots_[i];
    if (!other.written.recorded()) continue;
    const bool waits = !write_behind_ || i == static_cast<std::size_t>(slot);
    if (overlap(other.tile, tile) || waits) events.push_back(other.written);
  }
  const Event& used = slots_[static_cast<std::size_t>(slot)].used;
  if (used.recorded()) events.push_back(used);
  return events;
}

View NvmeStateStore::open(int slot, const Tile& tile, Event& ready, bool contents) {
  raise();
  const std::span<char> records = written(tile);
  const IoTransfer read = transfer(bytes_of(slot), tile, false);
  std::vector<IoTransfer> transfers;
  if (contents && std::any_of(records.begin(), records.end(), [](char is) { return is != 0; }))
    transfers.push_back(read);
  const std::vector<Event> after = before(slot, tile);
  if (!transfers.empty() || !after.empty())
    ready = queue_->submit("read tile", std::move(transfers), after);
  return read.memory;
}

void NvmeStateStore::close(int slot, const Tile& tile, const Event& used, bool changed) {
  raise();
  Slot& from = slots_[static_cast<std::size_t>(slot)];
  if (!changed) {
    from.used = used;
    return;
  }
  std::vector<Event> after = before(slot, tile);
  after.push_back(used);
  std::erase_if(copies_, [](const Copy& copy) { return copy.done.done(); });
  for (const Copy& copy : copies_)
    if (overlap(copy.tile, tile)) after.push_back(copy.done);
  from.written = queue_->submit("write tile", {transfer(bytes_of(slot), tile, true)}, after);
  from.tile = tile;
  const std::span<char> records = written(tile);
  std::fill(records.begin(), records.end(), char{1});
}

Event NvmeStateStore::snapshot(const Tile& tile, const View& target, const Event& free) {
  raise();
  std::vector<Event> after;
  for (const Slot& slot : slots_)
    if (slot.written.recorded() && overlap(slot.tile, tile)) after.push_back(slot.written);
  if (free.recorded()) after.push_back(free);
  const Event done = queue_->submit("copy tile", {transfer(target, tile, false)}, after);
  copies_.push_back({tile, done});
  return done;
}

}  // namespace

std::int64_t slot_bytes(const std::vector<RecordLayout>& records, std::int64_t tile_elements,
                        int buffer_count) {
  const std::int64_t bytes = largest_tile(records, tile_elements) * buffer_count;
  // From 64 KiB on memory begins at a page, as direct I/O wants it.
  return bytes == 0 ? 0 : std::max<std::int64_t>(64 << 10, bytes);
}

StateStoreFactory make_nvme_state_store(NvmeStateOptions options) {
  return
      [options = std::move(options)](
          Device& device, const std::vector<RecordLayout>& records) -> std::unique_ptr<StateStore> {
        return std::make_unique<NvmeStateStore>(device, records, options);
      };
}

}  // namespace zero3d
