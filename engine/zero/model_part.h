// Where one rank's part of the model lies in the whole of it: what its parameters are called among
// all ranks, and which of its elements count where ranks add up.
#pragma once

#include <string>
#include <vector>

#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {

struct ModelPart {
  const Mesh* mesh = nullptr;
  int shard = 0;                   ///< Which shard of each unit is this rank's.
  std::vector<std::string> names;  ///< Of the whole model's parameters, in order of declaration.
  std::vector<int> numbers;        ///< Per parameter of the layout: its place in `names`.
  /// Per unit: of the ranks with the same elements of it, this one's count. Each replica group has
  /// one, and where tensor parallelism does not cut the unit, each of its groups.
  std::vector<bool> owner;
  /// The same among the ranks of this stage of a pipeline, which may not own what it holds.
  std::vector<bool> stage_owner;
  bool counts_loss = true;  ///< This rank's losses count: of those that have the same, the first.
};

/// `names`: of the whole model's parameters, in order of declaration. `ends_model`: this rank has
/// its last block.
ModelPart find_model_part(const ParamLayout& layout, std::vector<std::string> names,
                          bool ends_model, const Mesh& mesh, const ZeroGroups& groups);

}  // namespace zero3d
