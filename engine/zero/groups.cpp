#include "zero3d/engine/zero/groups.h"

#include <algorithm>

namespace zero3d {

ZeroGroups make_zero_groups(const Mesh& mesh, const ZeroGroupSizes& sizes,
                            const std::set<std::vector<int>>& tied) {
  Communicator& all = mesh.group(Axis::zero);
  const int rank = all.rank();
  const Subgroups shards(all.size(), sizes.shard, "sharding.ranks");
  const Subgroups secondary(sizes.shard, sizes.secondary, "sharding.secondary_ranks");
  ZeroGroups groups;
  groups.data_parallel = mesh.size(Axis::dp);
  groups.gather = all.split(shards.shard_color(rank), rank);
  groups.shard = all.split(shards.shard_color(rank), rank);
  groups.replica = all.split(shards.replica_color(rank), rank);
  if (sizes.secondary > 1)
    groups.secondary = groups.gather->split(secondary.shard_color(groups.gather->rank()), rank);
  const int stage = mesh.rank(Axis::pp);
  for (const std::vector<int>& stages : tied) {
    const bool here = std::find(stages.begin(), stages.end(), stage) != stages.end();
    auto made = mesh.group(Axis::pp).split(here ? 0 : 1 + stage, stage);
    if (here) groups.tied[stages] = std::move(made);
  }
  Communicator& tensor = mesh.group(Axis::tp);
  if (tensor.size() > 1) groups.tensor = tensor.split(0, tensor.rank());
  for (const int holders : sizes.holders)
    groups.holders[holders] = tensor.split(tensor.rank() / holders, tensor.rank());
  return groups;
}

}  // namespace zero3d
