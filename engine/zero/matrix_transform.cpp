#include "zero3d/engine/zero/matrix_transform.h"

#include <algorithm>

#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

struct Workspace {
  std::int64_t shard = 0;
  std::int64_t padded = 0;
  std::int64_t scratch = 0;
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
      const std::int64_t scratch = static_cast<const MatrixRule&>(rule).scratch_numel(
          layout.parameter(index).placement.stored);
      workspace.scratch = std::max(workspace.scratch, scratch);
    }
  }
  return workspace;
}

}  // namespace

MatrixTransform::MatrixTransform(Device& device, const ParamLayout& layout, ZeroGroups& groups,
                                 const OptimizerSetup& setup)
    : layout_(layout), groups_(groups) {
  const Workspace workspace = plan_workspace(layout, setup);
  if (workspace.shard == 0) return;
  const auto allocate = [&](std::int64_t elements) {
    return Tensor(device.memory(), kNoStream, DType::f32, Shape{elements},
                  Category::optimizer_workspace);
  };
  blended_ = allocate(workspace.shard);
  whole_ = allocate(workspace.padded);
  scratch_ = allocate(workspace.scratch);
}

std::int64_t MatrixTransform::workspace_bytes(const ParamLayout& layout,
                                              const OptimizerSetup& setup) {
  const Workspace workspace = plan_workspace(layout, setup);
  return bytes_of(workspace.shard + workspace.padded + workspace.scratch, DType::f32);
}

void MatrixTransform::blend(const RuleCall& call, std::span<const StateSlice> states,
                            std::span<const UpdateSlice> slices) {
  std::vector<View> blended;
  for (const StateSlice& state : states)
    blended.push_back(blended_.view().flat(state.begin, state.count));
  static_cast<const MatrixRule&>(call.rule).blend(call.stream, call.settings, call.context, slices,
                                                  blended);
}

void MatrixTransform::orthogonalise(const RuleCall& call, int unit, double loss_scale,
                                    const View& gradient) {
  const Unit& entry = layout_.unit(unit);
  const auto& rule = static_cast<const MatrixRule&>(call.rule);
  const View whole = whole_.view().flat(0, entry.padded);
  groups_.shard->all_gather(call.stream, blended_.view().flat(0, entry.shard), whole);
  for (int index : entry.parameters) {
    const LayoutParameter& p = layout_.parameter(index);
    const View matrix = p.view_in(whole);
    rule.orthogonalise(call.stream, matrix,
                       scratch_.view().flat(0, rule.scratch_numel(matrix.shape())));
  }
  // Scaled like every other gradient, so that one factor unscales and clips both.
  const View mine = whole.flat(groups_.shard->rank() * entry.shard, entry.shard);
  if (loss_scale != 1) kernels::scale(call.stream, mine, static_cast<float>(loss_scale));
  kernels::convert(call.stream, mine, gradient);
}

}  // namespace zero3d
