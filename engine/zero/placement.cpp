#include "zero3d/engine/zero/placement.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// The ranges of the cut dim that are cut one by one.
std::vector<std::int64_t> parts_of(const ParameterSpec& spec) {
  const std::int64_t extent = spec.shape[spec.split.dim];
  const std::vector<std::int64_t>& parts = spec.split.parts;
  if (parts.empty()) return {extent};
  const std::int64_t covered = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (covered != extent || *std::min_element(parts.begin(), parts.end()) < 0) {
    throw_invalid(concat("parameter ", spec.name, " is split in parts of ", covered,
                         " elements along dim ", spec.split.dim, ", which has ", extent));
  }
  return parts;
}

/// Tensor-parallel ranks that hold the same of a part: more than one where there are fewer grains
/// than ranks and the split says that they are shared.
int holders_of(const ParameterSpec& spec, std::int64_t part, int ranks) {
  const std::int64_t grains = part / spec.split.grain;
  if (part % spec.split.grain != 0) {
    throw_invalid(concat("parameter ", spec.name, " has a part of ", part,
                         ", which is no multiple of its grain ", spec.split.grain));
  }
  if (!spec.split.shares_grains || grains >= ranks) return 1;
  if (ranks % grains != 0) {
    throw_invalid(concat("parameter ", spec.name, " has ", grains, " grains of ", spec.split.grain,
                         ", which ", ranks, " tensor-parallel ranks cannot share evenly"));
  }
  return static_cast<int>(ranks / grains);
}

/// Places one part, whose first global and stored positions are given; returns what is stored.
std::int64_t add_box(const ParameterSpec& spec, const PlacementOptions& options, std::int64_t part,
                     std::int64_t first, std::int64_t stored_first, Placement& placement) {
  const int ranks = options.tensor_parallel_size;
  const std::int64_t multiple = spec.split.grain > 1 ? spec.split.grain : options.padding;
  const std::int64_t stored = round_up(ceil_div<std::int64_t>(part, ranks), multiple);
  const std::int64_t begin =
      std::min(part, options.tensor_parallel_rank / placement.holders * stored);  // in the part
  placement.boxes.push_back({first + begin, std::min(stored, part - begin), stored_first});
  return stored;
}

/// `placement` seen as [outer, extent, inner] along `dim`.
void see_along(const ParameterSpec& spec, int dim, Placement& placement) {
  placement.global_extent = spec.shape[dim];
  for (int i = 0; i < dim; ++i) placement.outer *= spec.shape[i];
  for (int i = dim + 1; i < spec.shape.rank(); ++i) placement.inner *= spec.shape[i];
}

/// One box: the piece.
void place_piece(const ParameterSpec& spec, const PlacementOptions& options, Placement& placement) {
  const auto& [dim, first, count] = spec.piece;
  if (dim >= spec.shape.rank() || first < 0 || count < 1 || count > spec.shape[dim] - first) {
    throw_invalid(concat("parameter ", spec.name, " of shape ", to_string(spec.shape),
                         " has no piece of positions ", first, " to ", first + count - 1,
                         " along dim ", dim));
  }
  if (options.tensor_parallel_size > 1) {
    throw_invalid(concat("parameter ", spec.name, " is in pieces for tiles, and ",
                         options.tensor_parallel_size,
                         " tensor-parallel ranks share its layer: a layer is cut one way or the "
                         "other; use tiles without tensor parallelism"));
  }
  placement.local[dim] = placement.stored[dim] = placement.stored_extent = count;
  placement.boxes.push_back({first, count, 0});
  see_along(spec, dim, placement);
}

/// Cuts `placement`, which has the global shape, along the split's dim.
void cut(const ParameterSpec& spec, const PlacementOptions& options, Placement& placement) {
  const int dim = spec.split.dim;
  if (dim >= spec.shape.rank() || spec.split.grain < 1) {
    throw_invalid(concat("parameter ", spec.name, " of shape ", to_string(spec.shape),
                         " cannot be split along dim ", dim, " in grains of ", spec.split.grain));
  }
  std::int64_t first = 0, stored = 0, local = 0;
  for (const std::int64_t part : parts_of(spec)) {
    if (part == 0) continue;
    const int holders = holders_of(spec, part, options.tensor_parallel_size);
    if (first > 0 && holders != placement.holders) {
      throw_invalid(concat("parameter ", spec.name, " has parts that ", placement.holders, " and ",
                           holders, " of ", options.tensor_parallel_size,
                           " tensor-parallel ranks share: declare them apart"));
    }
    placement.holders = holders;
    stored += add_box(spec, options, part, first, stored, placement);
    local += placement.boxes.back().count;
    first += part;
  }
  placement.local[dim] = local;
  placement.stored[dim] = placement.stored_extent = stored;
  see_along(spec, dim, placement);
}

/// The runs of global_runs() that lie in one row of `stored_extent * inner` elements and in
/// [first, last) of the stored tensor.
void add_row(const Placement& p, std::int64_t row, std::int64_t first, std::int64_t last,
             std::vector<GlobalRun>& runs) {
  for (const Box& box : p.boxes) {
    const std::int64_t stored = (row * p.stored_extent + box.stored_first) * p.inner;
    const std::int64_t global = (row * p.global_extent + box.first) * p.inner;
    const std::int64_t begin = std::max(first, stored);
    const std::int64_t end = std::min(last, stored + box.count * p.inner);
    if (begin >= end) continue;
    const GlobalRun run{global + begin - stored, end - begin, begin - first};
    if (!runs.empty() && runs.back().offset + runs.back().count == run.offset &&
        runs.back().global_first + runs.back().count == run.global_first) {
      runs.back().count += run.count;
    } else {
      runs.push_back(run);
    }
  }
}

}  // namespace

Placement place_parameter(const ParameterSpec& spec, const PlacementOptions& options) {
  Placement placement;
  placement.global = placement.local = placement.stored = spec.shape;
  if (!spec.piece.whole()) {
    place_piece(spec, options, placement);
  } else if (spec.split.dim >= 0) {
    cut(spec, options, placement);
  } else {
    placement.global_extent = placement.stored_extent = spec.shape.numel();
    placement.boxes.push_back({0, spec.shape.numel(), 0});
    placement.holders = options.tensor_parallel_size;
  }
  placement.owned = options.tensor_parallel_rank % placement.holders == 0 && !options.copy;
  return placement;
}

std::vector<GlobalRun> global_runs(const Placement& placement, std::int64_t first,
                                   std::int64_t count) {
  if (count <= 0) return {};
  if (placement.whole()) return {{first, count, 0}};
  std::vector<GlobalRun> runs;
  const std::int64_t row = placement.stored_extent * placement.inner;
  for (std::int64_t r = first / row; r * row < first + count; ++r)
    add_row(placement, r, first, first + count, runs);
  return runs;
}

std::vector<std::pair<std::int64_t, std::int64_t>> padding_of(const Placement& placement) {
  const auto gaps_of_row = [&placement] {
    std::vector<std::pair<std::int64_t, std::int64_t>> gaps;
    std::int64_t covered = 0;
    for (const Box& box : placement.boxes) {
      if (covered < box.stored_first) gaps.emplace_back(covered, box.stored_first);
      covered = box.stored_first + box.count;
    }
    if (covered < placement.stored_extent) gaps.emplace_back(covered, placement.stored_extent);
    return gaps;
  }();
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  if (gaps_of_row.empty() || placement.inner == 0) return ranges;
  for (std::int64_t row = 0; row < placement.outer; ++row) {
    for (const auto& [first, last] : gaps_of_row) {
      const std::int64_t begin = (row * placement.stored_extent + first) * placement.inner;
      const std::int64_t end = (row * placement.stored_extent + last) * placement.inner;
      if (!ranges.empty() && ranges.back().second == begin) {
        ranges.back().second = end;
      } else {
        ranges.emplace_back(begin, end);
      }
    }
  }
  return ranges;
}

void copy_to_global(const Placement& placement, const ConstView& stored, const View& global) {
  ZERO3D_CHECK(stored.dtype() == global.dtype(), "a copy between dtypes");
  for (const GlobalRun& run : global_runs(placement, 0, stored.numel())) {
    const ConstView from = stored.flat(run.offset, run.count);
    std::memcpy(global.flat(run.global_first, run.count).data(), from.data(), from.bytes());
  }
}

void copy_from_global(const Placement& placement, const ConstView& global, const View& stored) {
  ZERO3D_CHECK(stored.dtype() == global.dtype(), "a copy between dtypes");
  for (const GlobalRun& run : global_runs(placement, 0, stored.numel())) {
    const ConstView from = global.flat(run.global_first, run.count);
    std::memcpy(stored.flat(run.offset, run.count).data(), from.data(), from.bytes());
  }
}

View view_as_global(const Placement& placement, const View& stored, TrackingResource& host,
                    Tensor& copy) {
  if (placement.whole()) return stored.reshaped(placement.global);
  copy = Tensor(host, kNoStream, stored.dtype(), placement.global, Category::gathered_parameters);
  copy_to_global(placement, stored, copy.view());
  return copy.view();
}

}  // namespace zero3d
