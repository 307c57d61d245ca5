// Muon's phases before an update: tiles of the averaged gradient are blended with their momentum;
// then each whole matrix of the unit is gathered, orthogonalised, and put back in place of the
// gradient, before the norm is taken and the update clipped (as DeepSpeed orders it).
#pragma once

#include <span>

#include "zero3d/device/device.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/update_plan.h"

namespace zero3d {

class MatrixTransform {
 public:
  /// Allocates nothing when no group's rule needs whole matrices. Both phases run on the stream of
  /// groups.shard.
  MatrixTransform(Device& device, const ParamLayout& layout, ZeroGroups& groups,
                  const OptimizerSetup& setup);

  /// The context's factor is 1 / loss scale. All tiles of a unit come before its orthogonalise().
  void blend(const RuleCall& call, std::span<const StateSlice> states,
             std::span<const UpdateSlice> slices);
  /// `gradient`: this rank's shard of the unit's reduced gradient, to be replaced by the result
  /// times the loss scale.
  void orthogonalise(const RuleCall& call, int unit, double loss_scale, const View& gradient);
  /// Device bytes of its workspace.
  static std::int64_t workspace_bytes(const ParamLayout& layout, const OptimizerSetup& setup);

 private:
  const ParamLayout& layout_;
  ZeroGroups& groups_;
  Tensor blended_;  ///< f32, this rank's shard.
  Tensor whole_;    ///< f32, the padded unit.
  Tensor scratch_;
};

}  // namespace zero3d
