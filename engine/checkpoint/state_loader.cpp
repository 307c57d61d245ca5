#include "zero3d/engine/checkpoint/state_loader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/convert.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

/// The weights of a saved state.
class SavedSource final : public ParameterSource {
 public:
  SavedSource(const SavedState& saved, const ParameterSource* others)
      : saved_(saved), others_(others) {}

  void read(const ParameterSpec& parameter, std::span<const GlobalRun> runs,
            const View& dst) const override {
    const SavedParameter* const entry = saved_.find(parameter.name);
    if (entry != nullptr && entry->shape == parameter.shape && entry->tensors.count(kWeight) > 0)
      return saved_.read(*entry, kWeight, runs, dst);
    if (others_ == nullptr)
      throw_invalid(concat(saved_.path(), " has no weight of ", parameter.name, " ",
                           to_string(parameter.shape)));
    others_->read(parameter, runs, dst);
  }

 private:
  const SavedState& saved_;
  const ParameterSource* others_;
};

bool has_weight(const SavedState& saved, const std::string& name) {
  const SavedParameter* const entry = saved.find(name);
  return entry != nullptr && entry->tensors.count(kWeight) > 0;
}

/// How many of a unit's parameters have a weight.
std::size_t weights_of(const SavedState& saved, const ParamLayout& layout, int unit) {
  const std::vector<int>& parameters = layout.unit(unit).parameters;
  return static_cast<std::size_t>(std::count_if(
      parameters.begin(), parameters.end(),
      [&](int parameter) { return has_weight(saved, layout.parameter(parameter).spec.name); }));
}

void fill(const View& target, float value) {
  if (value == 0) {
    std::memset(target.data(), 0, target.bytes());
    return;
  }
  const std::vector<float> values(static_cast<std::size_t>(target.numel()), value);
  convert_elements(DType::f32, reinterpret_cast<const std::byte*>(values.data()), target.dtype(),
                   target.data(), values.size());
}

/// Of one tensor's part of the largest record.
std::int64_t record_bytes(const ZeroPlan& plan) {
  std::int64_t record = 0;
  for (const Unit& unit : plan.layout.units())
    if (!unit.frozen) record = std::max(record, unit.shard);
  record = std::min(record, tile_sizes(plan.optimizer.tile_elements).record);
  return bytes_of(record, DType::f32);
}

constexpr std::size_t kBuffers = 3;

/// Brings tensors to the device through buffers of one record.
class StateLoad {
 public:
  StateLoad(const SavedState& saved, ShardedModel& model) : saved_(saved), model_(model) {
    const std::int64_t bytes = record_bytes(model.plan());
    if (bytes == 0) return;
    for (Buffer& buffer : buffers_)
      buffer.memory = Tensor(model.device().memory(Tier::pinned), kNoStream, DType::u8,
                             Shape{bytes}, Category::other);
  }

  void load(std::span<const StateSlice> slices, Stream& stream, bool states) {
    for (const StateSlice& slice : slices) {
      const LayoutParameter& p = model_.plan().layout.parameter(slice.parameter);
      const SavedParameter& entry = *saved_.find(p.spec.name);
      if (slice.master.defined() && entry.tensors.count(kWeight) > 0)
        bring(slice, p, entry, kWeight, 0, slice.master, stream);
      if (!states) continue;
      const std::vector<StateSpec> specs = model_.setup().rule(p.group).states();
      for (std::size_t i = 0; i < specs.size(); ++i)
        bring(slice, p, entry, specs[i].name, specs[i].initial, slice.states[i], stream);
    }
  }

 private:
  struct Buffer {
    Tensor memory;
    Event free;
  };

  void bring(const StateSlice& slice, const LayoutParameter& p, const SavedParameter& entry,
             std::string_view tensor, float padding, const View& target, Stream& stream) {
    Buffer& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers_.size();
    if (buffer.free.recorded()) buffer.free.wait();
    const View host = model_.device().host_write(
        View(buffer.memory.view().data(), target.dtype(), target.shape()));
    const std::vector<GlobalRun> runs = global_runs(p.placement, slice.first, slice.count);
    if (runs.size() != 1 || runs[0].count < slice.count) fill(host, padding);
    saved_.read(entry, tensor, runs, host);
    model_.device().copy(stream, target, host);
    buffer.free = Event();
    stream.record(buffer.free);
  }

  const SavedState& saved_;
  ShardedModel& model_;
  std::array<Buffer, kBuffers> buffers_;
  std::size_t next_ = 0;
};

}  // namespace

std::string find_mismatch(const SavedState& saved, const ShardedModel& model,
                          const LoadWhat& what) {
  ProblemList problems;
  for (const std::vector<int>& pieces : model.plan().layout.wholes()) {
    const LayoutParameter& parameter = model.plan().layout.parameter(pieces.front());
    const ParameterSpec& spec = parameter.spec;
    const SavedParameter* const entry = saved.find(spec.name);
    if (entry == nullptr) {
      problems.add(concat(spec.name, " is not in the checkpoint"));
    } else if (entry->shape != spec.shape) {
      problems.add(concat(spec.name, " is ", to_string(entry->shape), " in the checkpoint, and ",
                          to_string(spec.shape), " in the model"));
    } else if (entry->tensors.count(kWeight) == 0 && !entry->frozen) {
      problems.add(concat(spec.name, " has no weight in the checkpoint"));
    } else if (what.states && !spec.frozen) {
      std::vector<std::string> missing;
      const UpdateRule& rule = model.setup().rule(parameter.group);
      for (const StateSpec& state : rule.states())
        if (entry->tensors.count(state.name) == 0) missing.push_back(state.name);
      if (!missing.empty()) {
        problems.add(
            concat(spec.name, entry->frozen ? " was frozen, and so has no " : " has no ",
                   name_list(missing), ", which ", rule.name(), " keeps",
                   entry->rule.empty() ? "" : concat("; it was updated by ", entry->rule)));
      }
    }
  }
  const ParamLayout& layout = model.plan().layout;
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    const std::size_t there = weights_of(saved, layout, unit);
    if (there > 0 && there < layout.unit(unit).parameters.size())
      problems.add(concat("of ", layout.unit(unit).name,
                          " some frozen parameters were left out of the checkpoint, and others are "
                          "in it: freeze the same as the run that saved it"));
  }
  return problems.empty() ? "" : problems.text("it does not go with this run");
}

std::string find_strangers(const SavedState& saved, const std::vector<std::string>& names) {
  const std::set<std::string_view> known(names.begin(), names.end());
  std::vector<std::string> strangers;
  for (const SavedParameter& entry : saved.parameters())
    if (known.count(entry.name) == 0) strangers.push_back(entry.name);
  if (strangers.empty()) return "";
  return concat("it has parameters that this model lacks: ", name_list(strangers));
}

std::int64_t load_bytes(const ZeroPlan& plan) {
  return static_cast<std::int64_t>(kBuffers) * record_bytes(plan);
}

void load_state(const SavedState& saved, ShardedModel& model, const LoadWhat& what) {
  model.synchronize();
  ParameterStore& store = model.store();
  if (what.parameters) {
    store.load(*make_saved_source(saved, nullptr),
               [&](int unit) { return weights_of(saved, model.plan().layout, unit) > 0; });
    store.end_step();
  }
  StateLoad load(saved, model);
  model.optimizer().for_each_tile(
      true, [](int) { return true; },
      [&](const Tile&, std::span<const StateSlice> slices, Stream& stream) {
        load.load(slices, stream, what.states);
      });
  model.synchronize();
}

std::unique_ptr<ParameterSource> make_saved_source(const SavedState& saved,
                                                   const ParameterSource* others) {
  return std::make_unique<SavedSource>(saved, others);
}

}  // namespace zero3d
