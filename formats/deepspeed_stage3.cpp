// The layout of save_checkpoint at stage 3: a model file and an optimizer file for each rank of
// ZeRO. How parameters are cut: runtime/zero/stage3.py and utils/zero_to_fp32.py of DeepSpeed.
#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/deepspeed_shards.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

/// One rank's part of everything that stage 3 divided: of each parameter an equal share, rounded
/// up, one after the other through the flat buffers of sub-groups.
void add_stage3_rank(const std::vector<NamedShapes>& groups, const DeepspeedShard& shard,
                     std::int64_t rank, std::int64_t ranks, DeepspeedContents& contents) {
  const PickleValue flats =
      require_member(*shard.archive, shard.state, "fp32_flat_groups", PickleKind::list);
  const PickleValue base =
      require_member(*shard.archive, shard.state, "optimizer_state_dict", PickleKind::dict);
  if (flats.size() == 0 && !groups.empty() && !groups.front().empty())
    throw IoError(shard.archive->path(), 0,
                  "it has no masters: they were left on drives (offloaded_tensors), which is not "
                  "read; save with offload_optimizer.device cpu, or in universal form");
  const auto states = states_by_id(base);
  std::vector<std::int64_t> ids;
  for (const auto& group : group_ids(*shard.archive, base))
    ids.insert(ids.end(), group.begin(), group.end());
  std::size_t sub = 0;
  DeepspeedPartition partition;
  const auto enter = [&](std::size_t index) {
    sub = index;
    partition.archive = shard.archive;
    partition.masters =
        &require_tensor(*shard.archive, flats[sub], concat("masters of sub-group ", sub));
    const auto found = sub < ids.size() ? states.find(ids[sub]) : states.end();
    partition.states = found == states.end() ? PickleValue() : found->second;
  };
  std::int64_t at = 0;  // in the sub-group
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const auto& [name, shape] : groups[group]) {
      const std::int64_t numel = numel_of(shape), share = (numel + ranks - 1) / ranks;
      const std::int64_t first = std::min(rank * share, numel);
      const std::int64_t count = std::min(share, numel - first);
      if (partition.masters == nullptr) enter(0);
      while (at == partition.masters->numel() && share > 0) {
        enter(sub + 1);
        at = 0;
      }
      if (rank == 0)
        declare_group(contents, *shard.archive, partition.states, group, {{name, shape}});
      partition.add(contents, name, at, first, count);
      at += share;
      if (at > partition.masters->numel())
        throw IoError(
            shard.archive->path(), 0,
            concat("the masters of ", printable(name), " pass the end of sub-group ", sub));
    }
  }
}

/// Parameters without gradients: each rank has a share of the weight itself.
void add_stage3_frozen(const std::vector<const TorchArchive*>& models,
                       DeepspeedContents& contents) {
  const TorchArchive& front = *models.front();
  const PickleValue listed = front.root().find("frozen_param_shapes");
  if (!listed.is(PickleKind::dict)) return;
  std::vector<std::string> left;
  std::vector<PickleValue> fragments;
  for (const TorchArchive* model : models)
    fragments.push_back(model->root().find("frozen_param_fragments"));
  const auto ranks = static_cast<std::int64_t>(models.size());
  for (const auto& [name, shape] : named_shapes(front, listed)) {
    if (!fragments.front().find(name)) {
      left.push_back(name);
      continue;
    }
    contents.declare(front, name, shape).frozen = true;
    const std::int64_t numel = numel_of(shape), share = (numel + ranks - 1) / ranks;
    for (std::size_t rank = 0; rank < models.size(); ++rank) {
      const std::int64_t first = std::min(static_cast<std::int64_t>(rank) * share, numel);
      contents.add_piece(name, DeepspeedCheckpoint::kMaster,
                         {models[rank],
                          &require_tensor(*models[rank], fragments[rank].find(name),
                                          concat("the frozen parameter ", printable(name))),
                          0, first, std::min(share, numel - first)});
    }
  }
  if (!left.empty())
    contents.facts.remarks.push_back(
        concat("saved without its frozen parameters: ", name_list(left)));
}

}  // namespace

void read_deepspeed_stage3(const DeepspeedFiles& files, DeepspeedContents& contents) {
  std::vector<const TorchArchive*> models;
  for (const auto& [ranks, path] : files.shard_models) {
    if (ranks.second != 0)
      throw IoError(path, 0, "saved with tensor parallelism; convert it with ds_to_universal");
    if (ranks.first != static_cast<int>(models.size()))
      refuse_missing(files, concat("the model file of ZeRO rank ", models.size(), " is not there"));
    models.push_back(&contents.open(path));
  }
  read_model_facts(*models.front(), contents.facts);
  contents.facts.dtype = weight_dtype(models.front()->root().find("module"));
  const std::vector<DeepspeedShard> shards = open_shards(files, 0, contents);
  if (shards.size() != models.size())
    refuse_missing(files, concat("expected optimizer files of ", models.size(),
                                 " ZeRO ranks, found ", shards.size()));
  const std::vector<NamedShapes> groups = group_shapes(*models.front());
  const DeepspeedShard& front = shards.front();
  read_optimizer_facts(*front.archive, front.state, front.state.find("optimizer_state_dict"),
                       contents.facts);
  contents.facts.zero_stage = 3;
  const auto ranks = static_cast<std::int64_t>(shards.size());
  contents.facts.zero_ranks = static_cast<int>(ranks);
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    add_stage3_rank(groups, shards[static_cast<std::size_t>(rank)], rank, ranks, contents);
  add_stage3_frozen(models, contents);
}

}  // namespace zero3d
