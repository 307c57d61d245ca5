// The layout of save_checkpoint below stage 3: a model file for each model-parallel rank, an
// optimizer file for each rank of ZeRO, files of layers where a pipeline saved. How partitions are
// cut: runtime/zero/stage_1_and_2.py and utils/zero_to_fp32.py of DeepSpeed.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/deepspeed_shards.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

using Weights = std::vector<DeepspeedWeight>;

/// States of group `group`: of the optimizer's state_dict, or the list that elastic checkpoints
/// have.
PickleValue group_states(const DeepspeedShard& shard, std::size_t group) {
  const PickleValue base = shard.state.find("base_optimizer_state");
  if (base.is(PickleKind::list)) return base[group];
  const auto ids = group_ids(*shard.archive, base);
  if (group >= ids.size() || ids[group].empty()) return {};
  const auto states = states_by_id(base);
  const auto found = states.find(ids[group].front());
  return found == states.end() ? PickleValue() : found->second;
}

/// Names of `groups` that another model-parallel rank's files have given: parameters that stages of
/// a pipeline share.
std::set<std::string> already_there(const std::vector<NamedShapes>& groups,
                                    const DeepspeedContents& contents) {
  std::set<std::string> names;
  for (const NamedShapes& shapes : groups)
    for (const auto& [name, shape] : shapes)
      if (contents.has(name, DeepspeedCheckpoint::kMaster)) names.insert(name);
  return names;
}

/// Pieces by the addresses that stages 1 and 2 write down, which hold whatever the order and the
/// alignment of parameters.
void add_mapped(const std::vector<DeepspeedShard>& shards,
                const std::vector<DeepspeedPartition>& partitions, std::size_t group,
                const std::set<std::string>& skipped, DeepspeedContents& contents) {
  std::map<std::string, std::int64_t> filled;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    const PickleValue mapping = shards[rank].state.find("param_slice_mappings")[group];
    for (std::size_t i = 0; i < mapping.size(); ++i) {
      const std::string* name = mapping.key(i).text();
      if (name == nullptr || contents.find(*name) == nullptr)
        throw IoError(shards[rank].archive->path(), 0,
                      concat("an address of ", mapping.key(i).describe(),
                             ", which the model file does not list"));
      if (skipped.contains(*name)) continue;
      const std::int64_t count = counter(*shards[rank].archive, mapping[i].find("numel"));
      std::int64_t& first = filled[*name];
      if (count > contents.find(*name)->numel() - first)
        throw IoError(shards[rank].archive->path(), 0,
                      concat("addresses of more elements than ", printable(*name), " has"));
      partitions[rank].add(contents, *name,
                           counter(*shards[rank].archive, mapping[i].find("start")), first, count);
      first += count;
    }
  }
}

/// Pieces by the order of parameters alone: the partitions one after the other are the flat buffer,
/// whose padding is at its end, or after each parameter where the file says so.
void add_in_order(const std::vector<DeepspeedShard>& shards,
                  const std::vector<DeepspeedPartition>& partitions, std::size_t group,
                  const NamedShapes& shapes, const std::set<std::string>& skipped,
                  DeepspeedContents& contents) {
  const PickleValue gaps = shards.front().state.find("param_alignment_paddings")[group];
  std::int64_t at = 0;  // in the flat buffer
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const std::int64_t numel = numel_of(shapes[i].second);
    std::int64_t begin = 0;  // of the partition
    for (const DeepspeedPartition& partition : partitions) {
      const std::int64_t end = begin + partition.masters->numel();
      const std::int64_t low = std::max(begin, at), high = std::min(end, at + numel);
      if (low < high && !skipped.contains(shapes[i].first))
        partition.add(contents, shapes[i].first, low - begin, low - at, high - low);
      begin = end;
    }
    if (__builtin_add_overflow(at, numel, &at) ||
        __builtin_add_overflow(at, counter(*shards.front().archive, gaps[i]), &at))
      throw IoError(shards.front().archive->path(), 0, "parameters beyond every file");
  }
}

/// Stages 1 and 2, and the wrapper of bf16: the optimizer files of one model-parallel rank.
void add_partitioned(const TorchArchive& model, const std::vector<DeepspeedShard>& shards,
                     DeepspeedContents& contents) {
  const std::vector<NamedShapes> groups = group_shapes(model);
  const PickleValue base = shards.front().state.find("base_optimizer_state");
  read_optimizer_facts(*shards.front().archive, shards.front().state, base, contents.facts);
  contents.facts.zero_stage = std::max(contents.facts.zero_stage, 1);
  contents.facts.zero_ranks = static_cast<int>(shards.size());
  const std::set<std::string> skipped = already_there(groups, contents);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    std::vector<DeepspeedPartition> partitions;
    bool mapped = true;
    for (const DeepspeedShard& shard : shards) {
      const PickleValue flats = require_member(*shard.archive, shard.state,
                                               "single_partition_of_fp32_groups", PickleKind::list);
      partitions.push_back(
          {shard.archive,
           &require_tensor(*shard.archive, flats[group], concat("masters of group ", group)),
           group_states(shard, group)});
      mapped = mapped && shard.state.find("param_slice_mappings")[group].is(PickleKind::dict);
    }
    PickleValue steps = partitions.front().states;
    if (const PickleValue step = shards.front().state.find("base_optimizer_state_step"))
      contents.facts.groups.resize(std::max(contents.facts.groups.size(), group + 1),
                                   {counter(*shards.front().archive, step), {}});
    declare_group(contents, *shards.front().archive, steps, group, groups[group]);
    if (mapped)
      add_mapped(shards, partitions, group, skipped, contents);
    else
      add_in_order(shards, partitions, group, groups[group], skipped, contents);
  }
}

/// The weights of model files, or of the layers of a pipeline under "<layer>.<name>".
Weights collect_weights(const DeepspeedFiles& files, const std::vector<const TorchArchive*>& models,
                        DeepspeedContents& contents) {
  Weights weights;
  std::set<std::string> buffers;
  const auto add = [&](const TorchArchive& archive, PickleValue module, const std::string& prefix) {
    for (std::size_t i = 0; i < module.size(); ++i) {
      const std::string* name = module.key(i).text();
      const PickleTensor* tensor = module[i].tensor();
      if (name == nullptr || tensor == nullptr || buffers.contains(*name)) continue;
      weights.push_back({prefix + *name, &archive, tensor});
    }
    if (!contents.facts.dtype) contents.facts.dtype = weight_dtype(module);
  };
  for (const auto& [layer, path] : files.layers) {
    if (layer.second != 0)
      throw IoError(path, 0, "saved with tensor parallelism; convert it with ds_to_universal");
    const TorchArchive& archive = contents.open(path);
    add(archive, archive.root(), concat(layer.first, '.'));
  }
  if (!files.layers.empty()) return weights;
  const TorchArchive& model = *models.front();
  const PickleValue names = model.root().find("buffer_names");
  for (std::size_t i = 0; i < names.size(); ++i)
    if (const std::string* name = names[i].text()) buffers.insert(*name);
  add(model, require_member(model, model.root(), "module", PickleKind::dict), "");
  return weights;
}

/// "word_embeddings.weight" of "tied_modules.embed.word_embeddings.weight"; "" of other names.
std::string tied_local_name(const std::string& name) {
  constexpr std::string_view kTied = "tied_modules.";
  const std::size_t dot =
      name.starts_with(kTied) ? name.find('.', kTied.size()) : std::string::npos;
  return dot == std::string::npos ? "" : name.substr(dot + 1);
}

/// Weights that no optimizer has: other names of parameters, and frozen ones.
void add_other_weights(const Weights& weights, DeepspeedContents& contents) {
  std::map<std::tuple<const TorchArchive*, std::string, std::int64_t>, std::string> places;
  std::map<std::string, std::string> tied;  // local name -> parameter
  for (const DeepspeedParameter& parameter : contents.parameters)
    if (const std::string local = tied_local_name(parameter.name); !local.empty())
      tied.emplace(local, parameter.name);
  for (const DeepspeedWeight& weight : weights)
    if (contents.find(weight.name) != nullptr)
      places.emplace(std::tuple(weight.archive, weight.tensor->key, weight.tensor->offset),
                     weight.name);
  const bool trained = !contents.parameters.empty();
  for (const DeepspeedWeight& weight : weights) {
    if (contents.find(weight.name) != nullptr || contents.facts.aliases.contains(weight.name))
      continue;
    if (!weight.tensor->type->dtype || !is_floating(*weight.tensor->type->dtype)) continue;
    const auto place = std::tuple(weight.archive, weight.tensor->key, weight.tensor->offset);
    const auto same = places.find(place);
    if (same != places.end() && contents.find(same->second)->shape == weight.tensor->shape) {
      contents.facts.aliases[weight.name] = same->second;
      continue;
    }
    const auto shared = tied.find(weight.name.substr(weight.name.find('.') + 1));
    if (shared != tied.end() && contents.find(shared->second)->shape == weight.tensor->shape) {
      contents.facts.aliases[weight.name] = shared->second;
      continue;
    }
    places.emplace(place, weight.name);
    contents.declare(*weight.archive, weight.name, weight.tensor->shape).frozen = trained;
    contents.add_piece(weight.name, DeepspeedCheckpoint::kMaster,
                       {weight.archive, weight.tensor, 0, 0, weight.tensor->numel()});
  }
}

}  // namespace

void read_deepspeed_zero(const DeepspeedFiles& files, DeepspeedContents& contents) {
  if (files.models.empty()) return read_deepspeed_stage3(files, contents);
  std::vector<const TorchArchive*> models;
  for (const auto& [rank, path] : files.models) {
    if (rank != static_cast<int>(models.size()))
      refuse_missing(files, concat("mp_rank_", models.size() < 10 ? "0" : "", models.size(),
                                   "_model_states.pt is not there"));
    models.push_back(&contents.open(path));
  }
  DeepspeedFacts& facts = contents.facts;
  read_model_facts(*models.front(), facts);
  facts.pipeline = !files.layers.empty();
  const auto expected = models.front()->root().find("mp_world_size").integer();
  if (expected && *expected != static_cast<std::int64_t>(models.size()))
    refuse_missing(files, concat("expected the model files of ", *expected,
                                 " model-parallel ranks, found ", models.size()));
  if (facts.tensor_ranks > 1 || (!facts.pipeline && models.size() > 1))
    throw IoError(files.folder, 0,
                  "saved with tensor parallelism; convert it with ds_to_universal");
  const Weights weights = collect_weights(files, models, contents);
  if (!files.optimizers.empty()) {
    for (std::size_t mp = 0; mp < models.size(); ++mp) {
      const std::vector<DeepspeedShard> shards = open_shards(files, static_cast<int>(mp), contents);
      if (shards.empty())
        refuse_missing(files,
                       concat("the optimizer files of model-parallel rank ", mp, " are not there"));
      add_partitioned(*models[mp], shards, contents);
    }
  } else if (const PickleValue optimizer = models.front()->root().find("optimizer");
             optimizer && !optimizer.is_none()) {
    read_deepspeed_plain(models, weights, contents);
  }
  add_other_weights(weights, contents);
}

}  // namespace zero3d
