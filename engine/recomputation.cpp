#include "zero3d/engine/recomputation.h"

#include <algorithm>
#include <cstdint>

namespace zero3d {
namespace {

/// Adds the fetches of inputs that `groups`, computed again from the last to the first, keep on the
/// host.
std::vector<Op> with_fetches(std::span<const Op> ops, const std::vector<int>& groups) {
  std::vector<Op> result;
  for (const Op& op : ops) {
    if (op.kind == OpKind::recompute) {
      const auto group = std::lower_bound(groups.begin(), groups.end(), op.block);
      if (group != groups.begin() && group != groups.end() && *group == op.block)
        result.push_back(fetch_inputs_of(*(group - 1), op.micro_batch));
    }
    result.push_back(op);
    if (op.kind == OpKind::loss_gradient)
      result.push_back(fetch_inputs_of(groups.back(), op.micro_batch));
  }
  return result;
}

}  // namespace

std::vector<int> recomputed_groups(const StageBlocks& stage,
                                   const RecomputationSettings& settings) {
  const int begin = stage.backward_down_to;
  const int count = stage.blocks - 1 - begin;
  std::vector<int> first;
  if (settings.interval > 0) {
    // Not begin += interval, which may be more than an int holds.
    for (int done = 0; done < count; done += std::min(settings.interval, count - done))
      first.push_back(begin + done);
  } else if (settings.groups > 0) {
    const int groups = std::min(settings.groups, std::max(count, 0));
    for (std::int64_t group = 0; group < groups; ++group)
      first.push_back(begin + static_cast<int>(group * count / groups));
  }
  return first;
}

std::vector<Op> with_recomputation(std::span<const Op> ops, const StageBlocks& stage,
                                   const RecomputationSettings& settings, bool inputs_on_host) {
  const Keep kept = inputs_on_host ? Keep::inputs_on_host : Keep::inputs;
  const std::vector<int> groups = recomputed_groups(stage, settings);
  const bool placed = std::any_of(ops.begin(), ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::recompute; });
  if (groups.empty() || placed) return {ops.begin(), ops.end()};
  std::vector<Op> result;
  for (Op op : ops) {
    const auto next = std::upper_bound(groups.begin(), groups.end(), op.block);
    const int end = next == groups.end() ? stage.blocks - 1 : *next;
    const bool in_group = next != groups.begin() && op.block < end;
    const int first = in_group ? *(next - 1) : 0;
    if (in_group && op.kind == OpKind::forward) op.keep = op.block == first ? kept : Keep::nothing;
    if (in_group && begins_gradients(op.kind) && op.block == end - 1) {
      for (int block = first; block < end; ++block)
        result.push_back(recompute_of(block, op.micro_batch));
    }
    result.push_back(op);
  }
  return inputs_on_host ? with_fetches(result, groups) : result;
}

}  // namespace zero3d
