// LAMB's part of a step: the update of units whose rule scales each parameter's step by norms over
// the whole parameter. Two passes over the shards with one exchange of norms between them, summed
// exactly, so that they do not depend on how parameters are cut.
#pragma once

#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/engine/zero/model_part.h"
#include "zero3d/engine/zero/sharded_optimizer.h"

namespace zero3d {

class TensorNormStep {
 public:
  /// Allocates nothing when no group's rule needs norms.
  TensorNormStep(Device& device, const ParamLayout& layout, const ModelPart& part,
                 const OptimizerSetup& setup);

  bool needed() const { return !runs_.empty(); }
  /// Enqueues the whole update of its units on `compute`; the caller publishes them.
  void run(Stream& compute, GradientReducer& gradients, ShardedOptimizer& optimizer,
           const std::vector<GroupSettings>& groups, const StepContext& context);
  const std::vector<int>& units() const { return units_; }
  /// Device bytes of its workspace.
  static std::int64_t workspace_bytes(const ParamLayout& layout, const OptimizerSetup& setup,
                                      int stage_ranks);

 private:
  /// This rank's share of one parameter.
  struct Run {
    Tile tile;
    int parameter = 0;
    std::int64_t direction = 0;  ///< Offsets in the workspace.
    std::int64_t sums = 0;
  };
  TensorNormRule::Scratch scratch(const Run& run);
  void exchange_norms(Stream& compute);

  const ParamLayout& layout_;
  const ModelPart& part_;
  Communicator& stage_;  ///< All ranks with these parameters, or pieces of them.
  const OptimizerSetup& setup_;
  std::vector<int> units_;
  std::vector<int> parameters_;  ///< Of its units; their place here names their norms.
  std::vector<int> place_;       ///< Per parameter of the layout.
  std::vector<Run> runs_;
  Tensor direction_;
  Tensor parameter_sums_;
  Tensor direction_sums_;
  Tensor mine_;   ///< Two ExactSum per parameter, as bytes.
  Tensor all_;    ///< The same of all ranks of the stage.
  Tensor norms_;  ///< f64 [parameters, 2].
};

}  // namespace zero3d
