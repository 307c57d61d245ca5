// The optimizer's state in a model file, as DeepSpeed saves it without ZeRO: of the optimizer
// itself (fp32), or of the wrappers that keep masters for fp16, flat or one by one. It knows its
// parameters by number alone; which weights they are follows from their order and shapes.
#include <map>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/deepspeed_contents.h"
#include "zero3d/formats/safetensors.h"

namespace zero3d {
namespace {

using Weights = std::vector<DeepspeedWeight>;

/// One number of the optimizer.
struct Slot {
  const TorchArchive* archive = nullptr;
  int group = 0;
  PickleValue states;
  const PickleTensor* master = nullptr;  ///< Null: the weight itself.
  const PickleTensor* shaped = nullptr;  ///< A tensor of the parameter's shape; null: none.
};

bool fits(const Slot& slot, const DeepspeedWeight& weight) {
  return slot.shaped == nullptr || slot.shaped->shape == weight.tensor->shape;
}

/// The weight of each slot when both are gone through in order, from the front or from the back;
/// empty when they do not fit.
std::vector<std::size_t> in_order(const std::vector<Slot>& slots, const Weights& weights,
                                  bool from_back) {
  std::vector<std::size_t> places(slots.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::size_t slot = from_back ? slots.size() - 1 - i : i;
    const auto weight = [&] { return from_back ? weights.size() - 1 - next : next; };
    while (next < weights.size() && !fits(slots[slot], weights[weight()])) ++next;
    if (next == weights.size()) return {};
    places[slot] = weight();
    ++next;
  }
  return places;
}

void assign(const TorchArchive& archive, const std::vector<Slot>& slots, const Weights& weights,
            DeepspeedContents& contents) {
  const auto first = in_order(slots, weights, false), last = in_order(slots, weights, true);
  if (first != last || (first.empty() && !slots.empty()))
    throw IoError(archive.path(), 0,
                  concat("the optimizer has ", slots.size(), " parameters, the module ",
                         weights.size(), " weights, and their order and shapes do not tell which ",
                         "are which; save with ZeRO stage 1, which writes their names"));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot& slot = slots[i];
    const DeepspeedWeight& weight = weights[first[i]];
    DeepspeedParameter& parameter =
        contents.declare(*weight.archive, weight.name, weight.tensor->shape);
    auto& group = contents.facts.groups.at(static_cast<std::size_t>(slot.group));
    if (const PickleValue step = slot.states.find("step"))
      group.step = counter(*slot.archive, step);
    parameter.group = slot.group;
    parameter.step = group.step;
    const std::int64_t numel = parameter.numel();
    if (slot.master != nullptr)
      contents.add_piece(weight.name, DeepspeedCheckpoint::kMaster,
                         {slot.archive, slot.master, 0, 0, numel});
    else
      contents.add_piece(weight.name, DeepspeedCheckpoint::kMaster,
                         {weight.archive, weight.tensor, 0, 0, numel});
    for_each_state(slot.states, numel, [&](const std::string& name, const PickleTensor& tensor) {
      contents.add_piece(weight.name, name, {slot.archive, &tensor, 0, 0, numel});
    });
  }
}

/// The parameters of the optimizer, or of the wrapper that keeps masters one by one
/// ("fp32_groups").
std::vector<Slot> list_slots(const TorchArchive& archive, PickleValue masters,
                             PickleValue optimizer) {
  std::vector<Slot> slots;
  const auto states = states_by_id(optimizer);
  const auto groups = group_ids(archive, optimizer);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = 0; i < groups[group].size(); ++i) {
      Slot slot;
      slot.archive = &archive;
      slot.group = static_cast<int>(group);
      if (const auto found = states.find(groups[group][i]); found != states.end())
        slot.states = found->second;
      slot.master = slot.shaped = masters[group][i].tensor();
      if (masters && slot.master == nullptr)
        throw IoError(archive.path(), 0,
                      concat("expected a tensor of masters, found ", masters[group][i].describe()));
      for_each_state(slot.states, 0, [&](const std::string&, const PickleTensor& tensor) {
        if (slot.shaped == nullptr && !tensor.shape.empty()) slot.shaped = &tensor;
      });
      slots.push_back(slot);
    }
  }
  return slots;
}

/// A wrapper whose masters are one buffer: all weights one after the other.
void add_flat(const TorchArchive& archive, PickleValue flats, PickleValue optimizer,
              const Weights& weights, DeepspeedContents& contents) {
  const PickleTensor* masters = flats[0].tensor();
  std::int64_t numel = 0;
  for (const DeepspeedWeight& weight : weights) numel += weight.tensor->numel();
  if (flats.size() != 1 || masters == nullptr || masters->numel() != numel)
    throw IoError(archive.path(), 0,
                  concat("expected one buffer of masters with the ", numel, " elements of the ",
                         "module's weights, found ", flats.describe(), " with ",
                         flats[0].describe(), "; save with ZeRO stage 1, which writes names"));
  const auto states = states_by_id(optimizer);
  const PickleValue state = states.empty() ? PickleValue() : states.begin()->second;
  if (const PickleValue step = state.find("step"))
    contents.facts.groups.at(0).step = counter(archive, step);
  std::int64_t at = 0;
  for (const DeepspeedWeight& weight : weights) {
    DeepspeedParameter& parameter =
        contents.declare(*weight.archive, weight.name, weight.tensor->shape);
    parameter.group = 0;
    parameter.step = contents.facts.groups.at(0).step;
    const std::int64_t count = parameter.numel();
    contents.add_piece(weight.name, DeepspeedCheckpoint::kMaster,
                       {&archive, masters, at, 0, count});
    for_each_state(state, numel, [&](const std::string& name, const PickleTensor& tensor) {
      contents.add_piece(weight.name, name, {&archive, &tensor, at, 0, count});
    });
    at += count;
  }
}

/// Weights that an optimizer may have: floating, and each once.
Weights distinct(const Weights& weights, const DeepspeedContents& contents) {
  Weights kept;
  std::map<std::pair<const TorchArchive*, std::pair<std::string, std::int64_t>>, std::size_t>
      places;
  for (const DeepspeedWeight& weight : weights) {
    const PickleTensor& tensor = *weight.tensor;
    if (!tensor.type->dtype || !is_floating(*tensor.type->dtype) ||
        contents.facts.aliases.contains(weight.name))
      continue;
    const auto [same, fresh] = places.emplace(
        std::pair(weight.archive, std::pair(tensor.key, tensor.offset)), kept.size());
    if (fresh || kept[same->second].tensor->shape != tensor.shape) kept.push_back(weight);
  }
  return kept;
}

}  // namespace

void read_deepspeed_plain(const std::vector<const TorchArchive*>& models, const Weights& weights,
                          DeepspeedContents& contents) {
  const Weights candidates = distinct(weights, contents);
  std::vector<Slot> slots;
  for (const TorchArchive* model : models) {
    const PickleValue state = require_member(*model, model->root(), "optimizer", PickleKind::dict);
    const PickleValue inner = state.find("optimizer_state_dict");
    const PickleValue optimizer = inner ? inner : state;
    read_optimizer_facts(*model, state, optimizer, contents.facts);
    if (contents.facts.groups.empty())
      throw IoError(model->path(), 0, "an optimizer's state without param_groups");
    if (const PickleValue flats = state.find("fp32_groups_flat"); flats && models.size() == 1)
      return add_flat(*model, flats, optimizer, candidates, contents);
    if (contents.facts.groups.size() > 1)
      throw IoError(model->path(), 0,
                    "an optimizer of several groups without ZeRO, whose state does not name its "
                    "parameters; save with ZeRO stage 1, which writes their names");
    const auto more = list_slots(*model, state.find("fp32_groups"), optimizer);
    slots.insert(slots.end(), more.begin(), more.end());
  }
  assign(*models.front(), slots, candidates, contents);
}

}  // namespace zero3d
