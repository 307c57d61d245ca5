#include "zero3d/formats/deepspeed_shards.h"

#include <map>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

void DeepspeedPartition::add(DeepspeedContents& contents, const std::string& name, std::int64_t at,
                             std::int64_t first, std::int64_t count) const {
  contents.add_piece(name, DeepspeedCheckpoint::kMaster, {archive, masters, at, first, count});
  for_each_state(states, masters->numel(),
                 [&](const std::string& state, const PickleTensor& tensor) {
                   contents.add_piece(name, state, {archive, &tensor, at, first, count});
                 });
}

void refuse_missing(const DeepspeedFiles& files, std::string_view what) {
  throw IoError(files.folder, 0, concat("incomplete checkpoint of DeepSpeed: ", what));
}

std::vector<DeepspeedShard> open_shards(const DeepspeedFiles& files, int mp,
                                        DeepspeedContents& contents) {
  std::vector<DeepspeedShard> shards;
  std::map<int, std::string> paths;
  for (const auto& [ranks, path] : files.optimizers)
    if (ranks.second == mp) paths[ranks.first] = path;
  for (const auto& [rank, path] : paths) {
    if (rank != static_cast<int>(shards.size()))
      refuse_missing(
          files, concat("the optimizer file of ZeRO rank ", shards.size(), ", model-parallel rank ",
                        mp, " is not there, that of rank ", rank, " is"));
    const TorchArchive& archive = contents.open(path);
    shards.push_back({&archive, require_member(archive, archive.root(), "optimizer_state_dict",
                                               PickleKind::dict)});
  }
  if (shards.empty()) return shards;
  const PickleValue count = shards.front().state.find("partition_count");
  const auto expected = count.is(PickleKind::list) ? count[0].integer() : count.integer();
  if (expected && *expected != static_cast<std::int64_t>(shards.size()))
    refuse_missing(files,
                   concat("expected the optimizer files of ", *expected,
                          " ZeRO ranks of model-parallel rank ", mp, ", found ", shards.size()));
  return shards;
}

std::vector<NamedShapes> group_shapes(const TorchArchive& model) {
  const PickleValue list = require_member(model, model.root(), "param_shapes", PickleKind::list);
  std::vector<NamedShapes> groups;
  for (std::size_t i = 0; i < list.size(); ++i) groups.push_back(named_shapes(model, list[i]));
  return groups;
}

const PickleTensor& require_tensor(const TorchArchive& archive, PickleValue value,
                                   std::string_view what) {
  if (value.tensor() == nullptr || value.tensor()->expanded())
    throw IoError(archive.path(), 0,
                  concat("expected a tensor of ", what, ", found ", value.describe()));
  return *value.tensor();
}

void declare_group(DeepspeedContents& contents, const TorchArchive& archive, PickleValue states,
                   std::size_t group, const NamedShapes& shapes) {
  auto& groups = contents.facts.groups;
  if (groups.size() <= group) groups.resize(group + 1);
  if (const PickleValue step = states.find("step")) groups[group].step = counter(archive, step);
  for (const auto& [name, shape] : shapes) {
    DeepspeedParameter& parameter = contents.declare(archive, name, shape);
    parameter.group = static_cast<int>(group);
    parameter.step = groups[group].step;
  }
}

std::optional<DType> weight_dtype(PickleValue module) {
  for (std::size_t i = 0; i < module.size(); ++i) {
    const PickleTensor* tensor = module[i].tensor();
    if (tensor != nullptr && tensor->type->dtype && is_floating(*tensor->type->dtype))
      return tensor->type->dtype;
  }
  return std::nullopt;
}

}  // namespace zero3d
