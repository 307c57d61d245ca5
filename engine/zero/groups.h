// The process groups of one engine: who shards a unit together, who holds copies of the same shard.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "zero3d/parallel/mesh.h"

namespace zero3d {

/// Every rank of the mesh's `zero` groups, who hold the same piece of the model, is in one shard
/// group (its rank there is the shard it owns) and one replica group (the ranks that own the same
/// shard). Stages 1-3 shard over all; stage 0 over a group of one; MiCS over consecutive ranks.
struct ZeroGroups {
  int data_parallel = 1;                  ///< Replicas that see other samples: a mean is over them.
  std::unique_ptr<Communicator> gather;   ///< The shard group, for the gather stream: parameters.
  std::unique_ptr<Communicator> shard;    ///< The shard group, for the reduce stream: gradients.
  std::unique_ptr<Communicator> replica;  ///< Sums the reduced shards.
  /// By how many tensor-parallel ranks in a row hold the same: those ranks, for the reduce stream,
  /// where they write parts of gradients.
  std::map<int, std::unique_ptr<Communicator>> holders;
  std::unique_ptr<Communicator> tensor;     ///< The tensor-parallel ranks, for the reduce stream.
  std::unique_ptr<Communicator> secondary;  ///< hpZ: consecutive ranks of the shard group that hold
                                            ///< a second copy; may be null.
  /// For the reduce stream: the stages of a pipeline that hold the same parameter, by those stages.
  std::map<std::vector<int>, std::unique_ptr<Communicator>> tied;
};

struct ZeroGroupSizes {
  int shard = 1;               ///< Ranks a unit is cut over.
  int secondary = 1;           ///< hpZ: ranks the secondary copy is cut over; 1: none.
  std::set<int> holders = {};  ///< Of units that sum over theirs: Unit::holders.
};

/// Collective. `tied`: every set of stages that hold a parameter together, the same on all ranks.
/// Throws Error(kInvalid) when a size does not divide the group above it.
ZeroGroups make_zero_groups(const Mesh& mesh, const ZeroGroupSizes& sizes,
                            const std::set<std::vector<int>>& tied = {});

}  // namespace zero3d
