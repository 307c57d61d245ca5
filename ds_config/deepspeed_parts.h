// Which elements of a model's parameters each rank of DeepSpeed holds, in flat tensors: pure
// functions of shapes, ranks and stage.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/engine/checkpoint/saved_state.h"

namespace zero3d {

/// A run of a parameter in a flat tensor; what no segment covers is zero.
struct FlatSegment {
  const SavedParameter* parameter = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;
};
struct FlatTensor {
  std::vector<FlatSegment> segments;
  std::int64_t numel = 0;
  std::int64_t padding = 0;  ///< At its end: of the last ranks at stages 1 and 2.
};
/// All of a parameter.
FlatTensor whole_tensor(const SavedParameter& parameter);

using SavedParameters = std::vector<const SavedParameter*>;

/// Stages 1 and 2: an equal part of all parameters in a row, which are padded to two elements a
/// rank.
FlatTensor flat_partition(const SavedParameters& parameters, int rank, int ranks);
/// Stage 3: an equal part of each parameter, rounded up, ...
FlatTensor flat_share(const SavedParameter& parameter, int rank, int ranks);
/// ... in a row; a subgroup ends with the parameter that fills it.
std::vector<FlatTensor> flat_subgroups(const SavedParameters& parameters, int rank, int ranks,
                                       std::int64_t subgroup);

}  // namespace zero3d
