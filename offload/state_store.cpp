#include "zero3d/offload/state_store.h"

namespace zero3d {
namespace {

class DeviceStateStore final : public StateStore {
 public:
  DeviceStateStore(Device& device, const std::vector<RecordLayout>& records)
      : records_(records), units_(records.size()) {
    for (std::size_t unit = 0; unit < records.size(); ++unit) {
      if (records[unit].bytes() == 0) continue;
      units_[unit] = Tensor(device.memory(), kNoStream, DType::u8, Shape{records[unit].bytes()},
                            Category::optimizer_states);
    }
  }

  int slots() const override { return 1; }

  View open(int, const Tile& tile, Event&) override {
    const auto unit = static_cast<std::size_t>(tile.unit);
    const std::int64_t begin = records_[unit].offset(tile.begin);
    return units_[unit].view().flat(begin, records_[unit].offset(tile.begin + tile.count) - begin);
  }

  void close(int, const Tile&, const Event&) override {}

 private:
  const std::vector<RecordLayout>& records_;
  std::vector<Tensor> units_;
};

}  // namespace

std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    const std::vector<RecordLayout>& records) {
  return std::make_unique<DeviceStateStore>(device, records);
}

}  // namespace zero3d
