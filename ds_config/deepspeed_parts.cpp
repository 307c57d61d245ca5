#include "zero3d/ds_config/deepspeed_parts.h"

#include <algorithm>

#include "zero3d/core/multiples.h"

namespace zero3d {

FlatTensor whole_tensor(const SavedParameter& parameter) {
  const std::int64_t numel = parameter.shape.numel();
  return {{{&parameter, 0, numel, 0}}, numel, 0};
}

FlatTensor flat_partition(const SavedParameters& parameters, int rank, int ranks) {
  std::int64_t total = 0;
  for (const SavedParameter* parameter : parameters) total += parameter->shape.numel();
  FlatTensor flat;
  flat.numel = round_up<std::int64_t>(total, std::int64_t{2} * ranks) / ranks;
  const std::int64_t begin = rank * flat.numel;
  flat.padding = std::clamp<std::int64_t>(begin + flat.numel - total, 0, flat.numel);
  std::int64_t at = 0;
  for (const SavedParameter* parameter : parameters) {
    const std::int64_t from = std::max(begin, at);
    const std::int64_t to = std::min(begin + flat.numel, at + parameter->shape.numel());
    if (from < to) flat.segments.push_back({parameter, from - at, to - from, from - begin});
    at += parameter->shape.numel();
  }
  return flat;
}

FlatTensor flat_share(const SavedParameter& parameter, int rank, int ranks) {
  const std::int64_t numel = parameter.shape.numel();
  const std::int64_t share = ceil_div<std::int64_t>(numel, ranks);
  const std::int64_t begin = std::min(numel, rank * share);
  return {{{&parameter, begin, std::min(numel, begin + share) - begin, 0}}, share, 0};
}

std::vector<FlatTensor> flat_subgroups(const SavedParameters& parameters, int rank, int ranks,
                                       std::int64_t subgroup) {
  std::vector<FlatTensor> groups(1);
  for (const SavedParameter* parameter : parameters) {
    if (groups.back().numel >= subgroup) groups.emplace_back();
    FlatTensor& flat = groups.back();
    const FlatTensor share = flat_share(*parameter, rank, ranks);
    flat.segments.push_back(share.segments.front());
    flat.segments.back().offset = flat.numel;
    flat.numel += share.numel;
  }
  return groups;
}

}  // namespace zero3d
