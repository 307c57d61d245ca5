#include "zero3d/offload/state_store.h"

#include <utility>

#include "zero3d/core/error.h"

namespace zero3d {

Event StateStore::snapshot(const Tile& /*tile*/, const View& /*target*/, const Event& /*free*/) {
  throw Error(ErrorKind::kInternal, "snapshot() of a store whose tiles are in memory");
}

namespace {

class MemoryStateStore final : public StateStore {
 public:
  MemoryStateStore(Device& device, const std::vector<RecordLayout>& records, Tier tier,
                   Category category)
      : device_(device),
        records_(records),
        home_(tier),
        category_(category),
        units_(records.size()) {
    for (std::size_t unit = 0; unit < records.size(); ++unit) {
      if (records[unit].bytes() == 0) continue;
      units_[unit].bytes = allocate(records[unit].bytes(), tier);
      units_[unit].tier = tier;
    }
  }

  int slots() const override { return 1; }

  View open(int, const Tile& tile, Event& ready, bool) override {
    const auto unit = static_cast<std::size_t>(tile.unit);
    ready = units_[unit].used;
    const std::int64_t begin = records_[unit].offset(tile.begin);
    return units_[unit].bytes.view().flat(begin,
                                          records_[unit].offset(tile.begin + tile.count) - begin);
  }

  void close(int, const Tile& tile, const Event& used, bool) override {
    units_[static_cast<std::size_t>(tile.unit)].used = used;
  }

  void move_to(Stream& stream, Tier tier) override {
    if (home_ != Tier::device) return;
    for (Unit& unit : units_) {
      if (!unit.bytes.defined() || unit.tier == tier) continue;
      Tensor there = allocate(unit.bytes.numel(), tier);
      device_.copy(stream, there, unit.bytes);
      stream.synchronize();
      unit.bytes = std::move(there);
      unit.tier = tier;
    }
  }

 private:
  Tensor allocate(std::int64_t bytes, Tier tier) const {
    return Tensor(device_.memory(tier), kNoStream, DType::u8, Shape{bytes}, category_);
  }

  struct Unit {
    Tensor bytes;
    Tier tier = Tier::device;
    Event used;  ///< The end of the last work on it.
  };
  Device& device_;
  const std::vector<RecordLayout>& records_;
  const Tier home_;
  const Category category_;
  std::vector<Unit> units_;
};

}  // namespace

std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    const std::vector<RecordLayout>& records) {
  return std::make_unique<MemoryStateStore>(device, records, Tier::device,
                                            Category::optimizer_states);
}

StateStoreFactory make_memory_state_store(Tier tier, Category category) {
  return [tier, category](Device& device,
                          const std::vector<RecordLayout>& records) -> std::unique_ptr<StateStore> {
    return std::make_unique<MemoryStateStore>(device, records, tier, category);
  };
}

}  // namespace zero3d
