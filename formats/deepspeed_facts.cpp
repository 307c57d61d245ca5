// The numbers of a checkpoint that are no tensors.
#include <algorithm>
#include <cmath>
#include <set>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/deepspeed_contents.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

constexpr std::int64_t kMostRanks = 1'000'000;

[[noreturn]] void refuse(const TorchArchive& archive, std::string_view what, PickleValue found) {
  throw IoError(archive.path(), 0, concat("expected ", what, ", found ", found.describe()));
}

/// A plain number, or the only element of a tensor.
std::optional<double> number_of(const TorchArchive& archive, PickleValue value) {
  const PickleTensor* tensor = value.tensor();
  if (tensor == nullptr) return value.number();
  const std::optional<DType> dtype = tensor->type->dtype;
  if (tensor->numel() != 1 || !dtype) return std::nullopt;
  if (is_floating(*dtype)) {
    double number = 0;
    archive.read(*tensor, 0, View(reinterpret_cast<std::byte*>(&number), DType::f64, Shape{1}));
    return number;
  }
  if (*dtype != DType::i64) return std::nullopt;
  std::int64_t number = 0;
  archive.read(*tensor, 0, View(reinterpret_cast<std::byte*>(&number), DType::i64, Shape{1}));
  return static_cast<double>(number);
}

int degree(const TorchArchive& archive, PickleValue value, std::string_view name) {
  if (!value) return 1;
  const std::int64_t count = value.integer().value_or(0);
  if (count < 1 || count > kMostRanks) refuse(archive, concat(name, " of 1 or more"), value);
  return static_cast<int>(count);
}

std::int64_t whole(const TorchArchive& archive, PickleValue value, std::string_view name,
                   std::int64_t otherwise) {
  if (!value || value.is_none()) return otherwise;
  const auto number = number_of(archive, value);
  if (!number || std::floor(*number) != *number || std::abs(*number) > 9e15)
    refuse(archive, concat("a whole number as ", name), value);
  return static_cast<std::int64_t>(*number);
}

double real(const TorchArchive& archive, PickleValue value, std::string_view name,
            double otherwise) {
  if (!value || value.is_none()) return otherwise;
  const auto number = number_of(archive, value);
  if (!number || !std::isfinite(*number)) refuse(archive, concat("a number as ", name), value);
  return *number;
}

/// The object of ZeRO, or the same fields in the state of DeepSpeed's fp16 optimizers.
DeepspeedLossScale read_loss_scale(const TorchArchive& archive, PickleValue value) {
  DeepspeedLossScale scale;
  scale.scale = real(archive, value.find("cur_scale"), "cur_scale", 1);
  if (!(scale.scale > 0)) refuse(archive, "a loss scale above 0", value.find("cur_scale"));
  scale.dynamic = value.find("dynamic").boolean().value_or(false) ||
                  value.find("dynamic_loss_scale").boolean().value_or(false);
  scale.iteration = whole(archive, value.find("cur_iter"), "cur_iter", 0);
  scale.last_overflow = whole(archive, value.find("last_overflow_iter"), "last_overflow_iter", -1);
  scale.hysteresis = whole(archive, value.find("cur_hysteresis"), "cur_hysteresis", 1);
  scale.factor = real(archive, value.find("scale_factor"), "scale_factor", 2);
  scale.window = whole(archive, value.find("scale_window"), "scale_window", 1000);
  scale.min_scale = real(archive, value.find("min_scale"), "min_scale", 1);
  return scale;
}

DeepspeedGroup read_group(const TorchArchive& archive, PickleValue value) {
  DeepspeedGroup group;
  group.step = counter(archive, value.find("step"));
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string* name = value.key(i).text();
    if (name == nullptr || *name == "params" || *name == "step") continue;
    std::vector<double> numbers;
    const PickleValue entry = value[i];
    if (entry.is(PickleKind::list)) {
      for (std::size_t k = 0; k < std::min<std::size_t>(entry.size(), 16); ++k)
        if (const auto number = entry[k].number()) numbers.push_back(*number);
      if (numbers.size() != entry.size()) continue;
    } else if (const auto number = number_of(archive, entry)) {
      numbers.push_back(*number);
    } else {
      continue;
    }
    group.values[*name] = std::move(numbers);
  }
  return group;
}

}  // namespace

PickleValue require_member(const TorchArchive& archive, PickleValue parent, std::string_view name,
                           PickleKind kind) {
  const PickleValue value = parent.find(name);
  if (!value.is(kind))
    throw IoError(archive.path(), 0,
                  concat("no file that DeepSpeed wrote for this place: expected ",
                         kind == PickleKind::dict ? "a dict" : "a list", " under '", name,
                         "', found ", value.describe(), " in ", parent.describe()));
  return value;
}

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

NamedShapes named_shapes(const TorchArchive& archive, PickleValue dict) {
  NamedShapes shapes;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < dict.size(); ++i) {
    const std::string* name = dict.key(i).text();
    const PickleValue size = dict[i];
    std::vector<std::int64_t> shape;
    bool good = name != nullptr && size.is(PickleKind::list) && size.size() <= 64;
    std::int64_t numel = 1;
    for (std::size_t dim = 0; good && dim < size.size(); ++dim) {
      shape.push_back(size[dim].integer().value_or(-1));
      good = shape.back() >= 0 && !__builtin_mul_overflow(numel, shape.back(), &numel) &&
             numel < (std::int64_t{1} << 59);
    }
    if (!good) refuse(archive, "names and shapes of parameters", size);
    if (!names.insert(*name).second)
      throw IoError(archive.path(), 0, concat("parameter ", printable(*name), " is there twice"));
    shapes.emplace_back(*name, std::move(shape));
  }
  return shapes;
}

std::int64_t counter(const TorchArchive& archive, PickleValue value) {
  const std::int64_t count = whole(archive, value, "a counter", 0);
  if (count < 0) refuse(archive, "a counter of 0 or more", value);
  return count;
}

void read_model_facts(const TorchArchive& archive, DeepspeedFacts& facts) {
  const PickleValue root = archive.root();
  facts.global_steps = counter(archive, root.find("global_steps"));
  facts.global_samples = counter(archive, root.find("global_samples"));
  facts.skipped_steps = counter(archive, root.find("skipped_steps"));
  if (const std::string* version = root.find("ds_version").text()) facts.ds_version = *version;
  const PickleValue degrees = root.find("checkpoint_parallel_dimensions");
  facts.pipeline_stages = degree(archive, degrees.find("pp_degree"), "a pipeline degree");
  facts.tensor_ranks = degree(archive, degrees.find("tp_degree"), "a tensor-parallel degree");
  facts.zero_ranks = degree(archive, root.find("dp_world_size"), "a data-parallel size");
  const PickleValue scheduler = root.find("lr_scheduler");
  for (std::size_t i = 0; i < scheduler.size(); ++i) {
    const std::string* name = scheduler.key(i).text();
    const auto number = scheduler[i].number();
    if (name != nullptr && number) facts.scheduler[*name] = *number;
  }
  const PickleValue shared = root.find("shared_params");
  for (std::size_t i = 0; i < shared.size(); ++i) {
    const std::string *alias = shared.key(i).text(), *name = shared[i].text();
    if (alias != nullptr && name != nullptr) facts.aliases[*alias] = *name;
  }
  for (const char* name : {"data_sampler", "random_ltd"})
    if (const PickleValue value = root.find(name); value && !value.is_none())
      facts.remarks.push_back(concat("the state of ", name, " is not read"));
}

void read_optimizer_facts(const TorchArchive& archive, PickleValue state, PickleValue optimizer,
                          DeepspeedFacts& facts) {
  if (const PickleValue clip = state.find("clip_grad"); clip.number())
    facts.clip_grad = real(archive, clip, "clip_grad", 0);
  if (const PickleValue scaler = state.find("loss_scaler"); scaler.is(PickleKind::object))
    facts.loss_scale = read_loss_scale(archive, scaler);
  else if (state.find("cur_scale"))
    facts.loss_scale = read_loss_scale(archive, state);
  if (const auto stage = state.find("zero_stage").integer()) {
    if (*stage < 0 || *stage > 3) refuse(archive, "a ZeRO stage", state.find("zero_stage"));
    facts.zero_stage = static_cast<int>(*stage);
  }
  const PickleValue groups = optimizer.find("param_groups");
  facts.groups.clear();
  for (std::size_t i = 0; i < groups.size(); ++i)
    facts.groups.push_back(read_group(archive, groups[i]));
}

std::map<std::int64_t, PickleValue> states_by_id(PickleValue optimizer) {
  std::map<std::int64_t, PickleValue> states;
  const PickleValue all = optimizer.find("state");
  for (std::size_t i = 0; i < all.size(); ++i)
    if (const auto id = all.key(i).integer()) states[*id] = all[i];
  return states;
}

std::vector<std::vector<std::int64_t>> group_ids(const TorchArchive& archive,
                                                 PickleValue optimizer) {
  std::vector<std::vector<std::int64_t>> ids;
  const PickleValue groups = optimizer.find("param_groups");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ids.emplace_back();
    const PickleValue parameters = groups[i].find("params");
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const auto id = parameters[k].integer();
      if (!id) refuse(archive, "numbers of parameters in param_groups", parameters[k]);
      ids.back().push_back(*id);
    }
  }
  return ids;
}

void for_each_state(PickleValue states, std::int64_t numel,
                    const std::function<void(const std::string&, const PickleTensor&)>& body) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::string* name = states.key(i).text();
    const PickleTensor* tensor = states[i].tensor();
    if (name == nullptr || tensor == nullptr || *name == "step" || tensor->numel() < numel)
      continue;
    body(*name, *tensor);
  }
}

}  // namespace zero3d
