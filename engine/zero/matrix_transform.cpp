#include "zero3d/engine/zero/matrix_transform.h"

#include <algorithm>

#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

struct Workspace {
  std::int64_t shard = 0;
  std::int64_t padded = 0;
  std::int64_t scratch = 0;
  std::int64_t parts = 0;
  std::int64_t joined = 0;
  std::int64_t total() const { return shard + padded + scratch + parts + joined; }
};

Workspace plan_workspace(const ParamLayout& layout, const OptimizerSetup& setup) {
  Workspace workspace;
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    const Unit& entry = layout.unit(unit);
    const UpdateRule& rule = setup.rule(entry.group);
    if (entry.frozen || rule.needs() != RuleNeeds::whole_matrices) continue;
    workspace.shard = std::max(workspace.shard, entry.shard);
    workspace.padded = std::max(workspace.padded, entry.padded);
    for (int index : entry.parameters) {
      const Placement& placement = layout.parameter(index).placement;
      const std::int64_t scratch =
          static_cast<const MatrixRule&>(rule).scratch_numel(placement.global);
      workspace.scratch = std::max(workspace.scratch, scratch);
      if (placement.whole()) continue;
      const int ranks = layout.placement().tensor_parallel_size;
      workspace.parts = std::max(workspace.parts, ranks * placement.stored.numel());
      workspace.joined = std::max(workspace.joined, placement.global.numel());
    }
  }
  return workspace;
}

}  // namespace

MatrixTransform::MatrixTransform(Device& device, const ParamLayout& layout, ZeroGroups& groups,
                                 const OptimizerSetup& setup, const HostUpdates& host)
    : device_(device), layout_(layout), groups_(groups), host_(host) {
  const Workspace workspace = plan_workspace(layout, setup);
  if (workspace.shard == 0) return;
  const auto allocate = [&](std::int64_t elements) {
    return Tensor(device.memory(), kNoStream, DType::f32, Shape{elements},
                  Category::optimizer_workspace);
  };
  blended_ = allocate(workspace.shard);
  whole_ = allocate(workspace.padded);
  scratch_ = allocate(workspace.scratch);
  if (workspace.parts > 0) {
    parts_ = allocate(workspace.parts);
    joined_ = allocate(workspace.joined);
  }
  const std::int64_t bytes = host_bytes(layout, setup, host.units);
  if (bytes == 0) return;
  host_blended_ = Tensor(device.memory(host.tier), kNoStream, DType::f32,
                         Shape{bytes / bytes_of(1, DType::f32)}, Category::optimizer_workspace);
}

std::int64_t MatrixTransform::host_bytes(const ParamLayout& layout, const OptimizerSetup& setup,
                                         const std::vector<bool>& offloaded) {
  std::int64_t largest = 0;
  for (int index = 0; index < layout.unit_count(); ++index) {
    const Unit& unit = layout.unit(index);
    if (unit.frozen || offloaded.empty() || !offloaded[static_cast<std::size_t>(index)]) continue;
    if (setup.rule(unit.group).needs() == RuleNeeds::whole_matrices)
      largest = std::max(largest, unit.shard);
  }
  return bytes_of(largest, DType::f32);
}

std::int64_t MatrixTransform::workspace_bytes(const ParamLayout& layout,
                                              const OptimizerSetup& setup) {
  return bytes_of(plan_workspace(layout, setup).total(), DType::f32);
}

void MatrixTransform::blend(const RuleCall& call, std::span<const StateSlice> states,
                            std::span<const UpdateSlice> slices) {
  std::vector<View> blended;
  for (const StateSlice& state : states) {
    const bool on_host = host_.holds(state.unit);
    if (on_host && brought_.recorded()) call.stream.wait(brought_);
    const View target = on_host ? host_blended_.view() : blended_.view();
    blended.push_back(target.flat(state.begin, state.count));
  }
  static_cast<const MatrixRule&>(call.rule).blend(call.stream, call.settings, call.context, slices,
                                                  blended);
}

/// A host's blended gradient comes to the device.
void MatrixTransform::bring(Stream& stream, const View& blended) {
  Event ready;
  host_.stream->record(ready);
  stream.wait(ready);
  if (taken_.recorded()) stream.wait(taken_);
  device_.copy(stream, blended, host_blended_.view().flat(0, blended.numel()));
  brought_ = Event();
  stream.record(brought_);
}

namespace {

/// What a box of a placement is of the stored and of the global tensor, as columns.
Columns stored_columns(const Placement& p, const Box& box, const View& stored) {
  return {stored.reshaped({p.outer, p.stored_extent * p.inner}), box.stored_first * p.inner,
          box.count * p.inner};
}
Columns global_columns(const Placement& p, const Box& box, const View& global) {
  return {global.reshaped({p.outer, p.global_extent * p.inner}), box.first * p.inner,
          box.count * p.inner};
}

}  // namespace

/// Of a matrix of which `stored` is this rank's part: every rank transforms the whole.
void MatrixTransform::transform_whole(const RuleCall& call, const LayoutParameter& parameter,
                                      const View& stored) {
  const auto& rule = static_cast<const MatrixRule&>(call.rule);
  PlacementOptions options = layout_.placement();
  const std::int64_t part = stored.numel();
  const View parts = parts_.view().flat(0, options.tensor_parallel_size * part);
  const Placement& mine = parameter.placement;
  const View global = joined_.view().flat(0, mine.global.numel()).reshaped(mine.global);
  groups_.tensor->all_gather(call.stream, stored, parts);
  for (int rank = 0; rank < options.tensor_parallel_size; rank += mine.holders) {
    options.tensor_parallel_rank = rank;
    const Placement placement = place_parameter(parameter.spec, options);
    for (const Box& box : placement.boxes) {
      if (box.count == 0) continue;
      kernels::copy_columns(call.stream,
                            stored_columns(placement, box, parts.flat(rank * part, part)),
                            global_columns(placement, box, global));
    }
  }
  rule.orthogonalise(call.stream, global,
                     scratch_.view().flat(0, rule.scratch_numel(global.shape())));
  for (const Box& box : mine.boxes) {
    if (box.count > 0)
      kernels::copy_columns(call.stream, global_columns(mine, box, global),
                            stored_columns(mine, box, stored));
  }
}

void MatrixTransform::orthogonalise(const RuleCall& call, int unit, double loss_scale,
                                    GradientReducer& gradients) {
  const Unit& entry = layout_.unit(unit);
  const auto& rule = static_cast<const MatrixRule&>(call.rule);
  const View whole = whole_.view().flat(0, entry.padded);
  const View blended = blended_.view().flat(0, entry.shard);
  if (host_.holds(unit)) bring(call.stream, blended);
  groups_.shard->all_gather(call.stream, blended, whole);
  for (int index : entry.parameters) {
    const LayoutParameter& p = layout_.parameter(index);
    const View matrix = p.view_in(whole);
    if (!p.placement.whole()) {
      transform_whole(call, p, matrix);
      continue;
    }
    rule.orthogonalise(call.stream, matrix,
                       scratch_.view().flat(0, rule.scratch_numel(matrix.shape())));
  }
  // Scaled like every other gradient, so that one factor unscales and clips both.
  const View mine = whole.flat(groups_.shard->rank() * entry.shard, entry.shard);
  if (loss_scale != 1) kernels::scale(call.stream, mine, static_cast<float>(loss_scale));
  if (!host_.holds(unit)) return kernels::convert(call.stream, mine, gradients.reduced(unit));
  const View rounded(blended.data(), gradients.accumulation_dtype(), blended.shape());
  kernels::convert(call.stream, mine, rounded);
  Event ready;
  call.stream.record(ready);
  taken_ = gradients.offloaded()->add(unit, rounded, ready, true, false);
}

}  // namespace zero3d
