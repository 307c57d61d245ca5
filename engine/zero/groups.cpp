#include "zero3d/engine/zero/groups.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

void require_divides(const char* what, int part, int whole, const char* key) {
  if (part >= 1 && whole % part == 0) return;
  throw_invalid(concat(what, " of ", part, " ranks does not divide the ", whole,
                       " it is taken from; change ", key));
}

}  // namespace

ZeroGroups make_zero_groups(Communicator& data_parallel, const ZeroGroupSizes& sizes) {
  require_divides("a shard group", sizes.shard, data_parallel.size(),
                  "zero_optimization.mics_shard_size");
  require_divides("a secondary partition", sizes.secondary, sizes.shard,
                  "zero_optimization.zero_hpz_partition_size");
  const int rank = data_parallel.rank();
  ZeroGroups groups;
  groups.data_parallel = &data_parallel;
  groups.gather = data_parallel.split(rank / sizes.shard, rank);
  groups.shard = data_parallel.split(rank / sizes.shard, rank);
  groups.replica = data_parallel.split(rank % sizes.shard, rank);
  if (sizes.secondary > 1)
    groups.secondary = groups.gather->split(groups.gather->rank() / sizes.secondary, rank);
  return groups;
}

}  // namespace zero3d
