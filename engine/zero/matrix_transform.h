// Muon's part of a step: each matrix's whole averaged gradient is blended with its momentum,
// gathered, orthogonalised, and put back in place of the gradient, before the norm is taken and the
// update clipped (as DeepSpeed orders it).
#pragma once

#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/sharded_optimizer.h"

namespace zero3d {

class MatrixTransform {
 public:
  /// Allocates nothing when no group's rule needs whole matrices. `reduce` is the stream of
  /// groups.shard.
  MatrixTransform(Device& device, const ParamLayout& layout, ZeroGroups& groups,
                  const OptimizerSetup& setup, Stream& reduce);

  bool needed() const { return !units_.empty(); }
  /// Enqueues the transformation of the reduced gradients before later work on `compute`. The host
  /// has waited for the step's report, and so for all that wrote what is transformed.
  void run(Stream& compute, GradientReducer& gradients, ShardedOptimizer& optimizer,
           const std::vector<GroupSettings>& groups, std::int64_t step, double loss_scale);
  /// Device bytes of its workspace.
  static std::int64_t workspace_bytes(const ParamLayout& layout, const OptimizerSetup& setup);

 private:
  const MatrixRule& rule_of(int unit) const;

  const ParamLayout& layout_;
  ZeroGroups& groups_;
  const OptimizerSetup& setup_;
  Stream& reduce_;
  std::vector<int> units_;
  Tensor blended_;  ///< f32, this rank's shard.
  Tensor whole_;    ///< f32, the padded unit.
  Tensor scratch_;
};

}  // namespace zero3d
