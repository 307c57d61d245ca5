#include "zero3d/engine/zero/matrix_transform.h"

#include <algorithm>

#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

struct Workspace {
  std::vector<int> units;
  std::int64_t shard = 0;
  std::int64_t padded = 0;
  std::int64_t scratch = 0;
};

Workspace plan_workspace(const ParamLayout& layout, const OptimizerSetup& setup) {
  Workspace workspace;
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    const Unit& entry = layout.unit(unit);
    const UpdateRule& rule = *setup.group(entry.group).rule;
    if (entry.frozen || rule.needs() != RuleNeeds::whole_matrices) continue;
    workspace.units.push_back(unit);
    workspace.shard = std::max(workspace.shard, entry.shard);
    workspace.padded = std::max(workspace.padded, entry.padded);
    for (int index : entry.parameters) {
      const std::int64_t scratch =
          static_cast<const MatrixRule&>(rule).scratch_numel(layout.parameter(index).spec.shape);
      workspace.scratch = std::max(workspace.scratch, scratch);
    }
  }
  return workspace;
}

}  // namespace

MatrixTransform::MatrixTransform(Device& device, const ParamLayout& layout, ZeroGroups& groups,
                                 const OptimizerSetup& setup, Stream& reduce)
    : layout_(layout), groups_(groups), setup_(setup), reduce_(reduce) {
  Workspace workspace = plan_workspace(layout, setup);
  units_ = std::move(workspace.units);
  if (units_.empty()) return;
  blended_ = Tensor(device.memory(), DType::f32, Shape{workspace.shard}, "optimizer workspace");
  whole_ = Tensor(device.memory(), DType::f32, Shape{workspace.padded}, "optimizer workspace");
  scratch_ = Tensor(device.memory(), DType::f32, Shape{workspace.scratch}, "optimizer workspace");
}

std::int64_t MatrixTransform::workspace_bytes(const ParamLayout& layout,
                                              const OptimizerSetup& setup) {
  const Workspace workspace = plan_workspace(layout, setup);
  return (workspace.shard + workspace.padded + workspace.scratch) *
         static_cast<std::int64_t>(sizeof(float));
}

const MatrixRule& MatrixTransform::rule_of(int unit) const {
  return static_cast<const MatrixRule&>(*setup_.group(layout_.unit(unit).group).rule);
}

void MatrixTransform::run(Stream& compute, GradientReducer& gradients, ShardedOptimizer& optimizer,
                          const std::vector<GroupSettings>& groups, std::int64_t step,
                          double loss_scale) {
  for (int unit : units_) {
    const Unit& entry = layout_.unit(unit);
    const MatrixRule& rule = rule_of(unit);
    const Tile tile{unit, 0, entry.shard};
    const UpdateSlice slice = optimizer.fetch(reduce_, tile, gradients);
    const View blended = blended_.view().flat(0, entry.shard);
    const StepContext context{step, static_cast<float>(1.0 / loss_scale)};
    rule.blend(reduce_, groups[static_cast<std::size_t>(entry.group)], context, {&slice, 1},
               {&blended, 1});
    optimizer.commit(reduce_, tile);
    const View whole = whole_.view().flat(0, entry.padded);
    const GatherSegment segment{blended, whole};
    groups_.shard->all_gather(reduce_, {&segment, 1});
    for (int index : entry.parameters) {
      const LayoutParameter& p = layout_.parameter(index);
      const View matrix = whole.flat(p.offset, p.numel()).reshaped(p.spec.shape);
      rule.orthogonalise(reduce_, matrix,
                         scratch_.view().flat(0, rule.scratch_numel(p.spec.shape)));
    }
    // Scaled like every other gradient, so that one factor unscales and clips both.
    const View mine = whole.flat(groups_.shard->rank() * entry.shard, entry.shard);
    if (loss_scale != 1) kernels::scale(reduce_, mine, static_cast<float>(loss_scale));
    kernels::convert(reduce_, mine, gradients.reduced(unit));
  }
  Event transformed;
  reduce_.record(transformed);
  compute.wait(transformed);
}

}  // namespace zero3d
