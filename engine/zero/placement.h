// What of a parameter is on this rank, before any data-parallel shard: the global tensor that its
// name, source and exports mean, the boxes of it that tensor parallelism leaves here, the padded
// shape they are stored in, and who owns them. Pure functions; with one rank and no padding, all of
// it is the identity.
//
// A cut dim is cut part by part (a fused q, k, v has three). Every rank stores equally much of a
// part, so that layouts and plans are the same on all of them: an equal share rounded up, to whole
// grains where the split names a grain (heads), else to a multiple of the padding. Shares are dealt
// in order: where they do not divide a part, the last ranks that hold any of it hold less, the
// ranks after them nothing, and the rest of what they store is padding. A piece (for a tile)
// is one box, and not cut further.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/device/memory.h"
#include "zero3d/engine/module.h"

namespace zero3d {

struct PlacementOptions {
  int tensor_parallel_rank = 0;
  int tensor_parallel_size = 1;
  std::int64_t padding = 1;  ///< Of a rank's share of a part that has no grain: vocabularies.
  bool copy = false;  ///< Tied to a parameter that another pipeline stage owns: owns nothing.
};

/// What is here of one part, along the cut dim.
struct Box {
  std::int64_t first = 0;  ///< In the global tensor.
  std::int64_t count = 0;
  std::int64_t stored_first = 0;
};

struct Placement {
  Shape global;
  Shape local;   ///< Of what is here; of a piece, what is here of that.
  Shape stored;  ///< With padding, which is zero: the shape of views of this parameter.
  /// The tensors seen as [outer, extent, inner], where extent is the cut dim; one of all elements
  /// when nothing is cut.
  std::int64_t outer = 1;
  std::int64_t global_extent = 1;
  std::int64_t stored_extent = 1;
  std::int64_t inner = 1;
  std::vector<Box> boxes;  ///< One per part, in local and in global order.
  int holders = 1;         ///< Tensor-parallel ranks in a row that hold the same.
  bool owned = true;       ///< This rank is the first of them: its elements count and are saved.

  /// The stored tensor is the global one.
  bool whole() const { return local == global && stored == global; }
};

/// Throws Error(kInvalid) for a split that its shape or the ranks do not allow, where ranks would
/// share one part of a parameter but not another, and for a piece that its shape does not have or
/// that tensor parallelism cuts otherwise.
Placement place_parameter(const ParameterSpec& spec, const PlacementOptions& options);

/// Elements [global_first, global_first + count) of the global tensor, in row-major order, lie at
/// `offset` of a range of the stored one.
struct GlobalRun {
  std::int64_t global_first = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;
};

/// What elements [first, first + count) of the stored tensor hold, as few runs as possible, in
/// order; padding is in no run. Offsets count from `first`.
std::vector<GlobalRun> global_runs(const Placement& placement, std::int64_t first,
                                   std::int64_t count);
/// Ranges [begin, end) of the stored tensor that are padding, in order.
std::vector<std::pair<std::int64_t, std::int64_t>> padding_of(const Placement& placement);

/// Copies what is here of a parameter between tensors of one dtype in host memory. To the global
/// one: the rest of it is left alone.
void copy_to_global(const Placement& placement, const ConstView& stored, const View& global);
void copy_from_global(const Placement& placement, const ConstView& global, const View& stored);
/// `stored` (host memory) under its global shape: itself where it is whole, else in `copy`, without
/// what other ranks hold.
View view_as_global(const Placement& placement, const View& stored, TrackingResource& host,
                    Tensor& copy);

}  // namespace zero3d
