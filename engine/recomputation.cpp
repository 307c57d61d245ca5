#include "zero3d/engine/recomputation.h"

#include <algorithm>
#include <cstdint>

namespace zero3d {
namespace {

struct Group {
  int first = 0;
  int end = 0;
  int chunk = 0;
  bool ends_chunk = false;
};

/// The first block of each group of [begin, begin + count).
std::vector<int> first_blocks(int begin, int count, const RecomputationSettings& settings) {
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

std::vector<Group> groups_of(const StageBlocks& stage, const RecomputationSettings& settings) {
  std::vector<Group> groups;
  int index = 0;
  for (const Chunk& chunk : stage.all_chunks()) {
    const int begin = std::max(chunk.begin, stage.backward_down_to);
    const int end = chunk.to < 0 ? chunk.end - 1 : chunk.end;
    const std::vector<int> first = first_blocks(begin, end - begin, settings);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const bool last = i + 1 == first.size();
      groups.push_back({first[i], last ? end : first[i + 1], index, last});
    }
    ++index;
  }
  return groups;
}

const Group* group_with(const std::vector<Group>& groups, int block) {
  for (const Group& group : groups)
    if (block >= group.first && block < group.end) return &group;
  return nullptr;
}

Op fetch_of(const Group& group, int micro_batch) {
  Op op = fetch_inputs_of(group.first, micro_batch);
  op.chunk = group.chunk;
  return op;
}

/// Adds the fetches of inputs that `groups`, computed again from the last to the first, keep on the
/// host.
std::vector<Op> with_fetches(std::span<const Op> ops, const StageBlocks& stage,
                             const std::vector<Group>& groups) {
  std::vector<Op> result;
  const std::vector<Chunk> chunks = stage.all_chunks();
  const auto begins_chunk = [&](const Op& op) {
    const Chunk& chunk = chunks[static_cast<std::size_t>(op.chunk)];
    if (chunk.to < 0) return op.kind == OpKind::loss_gradient;
    if (chunk.to != stage.stage) return op.kind == OpKind::receive_gradients;
    return op.kind == OpKind::recompute && group_with(groups, op.block)->ends_chunk &&
           group_with(groups, op.block)->first == op.block;
  };
  for (const Op& op : ops) {
    const bool at_recompute = op.kind == OpKind::recompute;
    if (!at_recompute) result.push_back(op);
    if (begins_chunk(op)) {
      for (const Group& group : groups)
        if (group.chunk == op.chunk && group.ends_chunk)
          result.push_back(fetch_of(group, op.micro_batch));
    }
    if (!at_recompute) continue;
    const Group* const group = group_with(groups, op.block);
    if (group != nullptr && group->first == op.block && group != groups.data() &&
        (group - 1)->chunk == group->chunk)
      result.push_back(fetch_of(*(group - 1), op.micro_batch));
    result.push_back(op);
  }
  return result;
}

}  // namespace

std::vector<int> recomputed_groups(const StageBlocks& stage,
                                   const RecomputationSettings& settings) {
  std::vector<int> first;
  for (const Group& group : groups_of(stage, settings)) first.push_back(group.first);
  return first;
}

std::vector<Op> with_recomputation(std::span<const Op> ops, const StageBlocks& stage,
                                   const RecomputationSettings& settings, bool inputs_on_host) {
  const Keep kept = inputs_on_host ? Keep::inputs_on_host : Keep::inputs;
  const std::vector<Group> groups = groups_of(stage, settings);
  const bool placed = std::any_of(ops.begin(), ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::recompute; });
  if (groups.empty() || placed) return {ops.begin(), ops.end()};
  std::vector<Op> result;
  for (Op op : ops) {
    const Group* const group = uses_parameters(op.kind) ? group_with(groups, op.block) : nullptr;
    if (group != nullptr && op.kind == OpKind::forward)
      op.keep = op.block == group->first ? kept : Keep::nothing;
    if (group != nullptr && begins_gradients(op.kind) && op.block == group->end - 1) {
      for (int block = group->first; block < group->end; ++block) {
        Op again = recompute_of(block, op.micro_batch);
        again.chunk = group->chunk;
        result.push_back(again);
      }
    }
    result.push_back(op);
  }
  return inputs_on_host ? with_fetches(result, stage, groups) : result;
}

}  // namespace zero3d
