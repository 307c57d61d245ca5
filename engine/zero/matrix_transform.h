// Muon's phases before an update: tiles of the averaged gradient are blended with their momentum;
// then each whole matrix of the unit is gathered, over tensor-parallel ranks too where they have
// parts of it, orthogonalised, and put back in place of the gradient, before the norm is taken and
// the update clipped (as DeepSpeed orders it).
#pragma once

#include <span>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/update_plan.h"

namespace zero3d {

class MatrixTransform {
 public:
  /// Allocates nothing when no group's rule needs whole matrices. Both phases run on the stream of
  /// groups.shard, but that the host blends its units.
  MatrixTransform(Device& device, const ParamLayout& layout, ZeroGroups& groups,
                  const OptimizerSetup& setup, const HostUpdates& host = {});

  /// The context's factor is 1 / loss scale. All tiles of a unit come before its orthogonalise().
  void blend(const RuleCall& call, std::span<const StateSlice> states,
             std::span<const UpdateSlice> slices);
  /// This rank's shard of the unit's reduced gradient is replaced by the result times the loss
  /// scale.
  void orthogonalise(const RuleCall& call, int unit, double loss_scale, GradientReducer& gradients);
  /// Device bytes of its workspace; and the host's, for its part.
  static std::int64_t workspace_bytes(const ParamLayout& layout, const OptimizerSetup& setup);
  static std::int64_t host_bytes(const ParamLayout& layout, const OptimizerSetup& setup,
                                 const std::vector<bool>& offloaded);

 private:
  void bring(Stream& stream, const View& blended);
  void transform_whole(const RuleCall& call, const LayoutParameter& parameter, const View& stored);

  Device& device_;
  const ParamLayout& layout_;
  ZeroGroups& groups_;
  const HostUpdates host_;
  Tensor blended_;  ///< f32, this rank's shard.
  Tensor whole_;    ///< f32, the padded unit.
  Tensor scratch_;
  // Of a matrix that tensor parallelism cuts: every rank's part, and the whole.
  Tensor parts_;
  Tensor joined_;
  Tensor host_blended_;  ///< As blended_, of a unit that the host updates.
  Event brought_;        ///< The copy of that to the device.
  Event taken_;          ///< The copy of a result from blended_ to the host.
};

}  // namespace zero3d
