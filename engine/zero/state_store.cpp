#include "zero3d/engine/zero/state_store.h"

#include <algorithm>

namespace zero3d {
namespace {

void initialise(Device& device, Stream& stream, const View& state, float value) {
  if (value == 0) return device.fill_zero(stream, state);
  ZERO3D_CHECK(state.dtype() == DType::f32, "a state with an initial value is fp32");
  stream.launch("initial state", {writes(state)},
                [state, value] { std::fill_n(state.as<float>(), state.numel(), value); });
}

class DeviceStateStore final : public StateStore {
 public:
  DeviceStateStore(Device& device, Stream& stream, const std::vector<UnitStateShape>& units)
      : units_(units.size()) {
    for (std::size_t index = 0; index < units.size(); ++index) {
      const UnitStateShape& shape = units[index];
      if (shape.elements == 0) continue;
      if (shape.master)
        units_[index].master =
            Tensor(device.memory(), shape.master_dtype, Shape{shape.elements}, "master weights");
      for (const StateShape& state : shape.states) {
        units_[index].states.emplace_back(device.memory(), state.dtype, Shape{shape.elements},
                                          "optimizer states");
        initialise(device, stream, units_[index].states.back().view(), state.initial);
      }
    }
  }

  TileViews fetch(Stream&, const Tile& tile) override {
    UnitState& unit = units_[static_cast<std::size_t>(tile.unit)];
    TileViews views;
    if (unit.master.defined()) views.master = unit.master.view().flat(tile.begin, tile.count);
    for (Tensor& state : unit.states)
      views.states.push_back(state.view().flat(tile.begin, tile.count));
    return views;
  }

  void commit(Stream&, const Tile&) override {}

  std::int64_t bytes() const override {
    std::size_t total = 0;
    for (const UnitState& unit : units_) {
      total += unit.master.view().bytes();
      for (const Tensor& state : unit.states) total += state.view().bytes();
    }
    return static_cast<std::int64_t>(total);
  }

 private:
  struct UnitState {
    Tensor master;
    std::vector<Tensor> states;
  };
  std::vector<UnitState> units_;
};

}  // namespace

std::unique_ptr<StateStore> make_device_state_store(Device& device, Stream& stream,
                                                    const std::vector<UnitStateShape>& units) {
  return std::make_unique<DeviceStateStore>(device, stream, units);
}

}  // namespace zero3d
