// LAMB's phases of an update: directions of tiles with their norms' block sums, one exchange of
// norms over whole parameters, summed exactly, so that they do not depend on how parameters are
// cut, and the directions applied.
#pragma once

#include <span>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/engine/zero/model_part.h"
#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/kernels/exact_sums.h"

namespace zero3d {

class TensorNormStep {
 public:
  /// Allocates nothing when no group's rule needs norms.
  TensorNormStep(Device& device, const ParamLayout& layout, const ModelPart& part,
                 const OptimizerSetup& setup, const HostUpdates& host = {});

  /// Slices are cut to parameters; each pair describes one. Directions go to their workspace.
  void prepare(const RuleCall& call, std::span<const StateSlice> states,
               std::span<const UpdateSlice> slices);
  /// All tiles are prepared, those of the host on its stream. apply() then goes there, or on
  /// `stream`.
  void exchange(Stream& stream);
  void apply(const RuleCall& call, std::span<const StateSlice> states,
             std::span<const UpdateSlice> slices);

  /// Device bytes of its workspace, directions not included; and the host's, for its part.
  static std::int64_t workspace_bytes(const ParamLayout& layout, const OptimizerSetup& setup,
                                      int stage_ranks);
  static std::int64_t host_bytes(const ParamLayout& layout, const OptimizerSetup& setup,
                                 const std::vector<bool>& offloaded);

 private:
  std::vector<TensorNormRule::Scratch> scratch(std::span<const StateSlice> states) const;

  void bring(Stream& stream);
  void give_back(Stream& stream);

  Device& device_;
  const ParamLayout& layout_;
  const OptimizerSetup& setup_;
  const HostUpdates host_;
  Communicator& stage_;                    ///< All ranks with these parameters, or pieces of them.
  std::vector<std::int64_t> first_block_;  ///< Per unit, in the block sums.
  std::vector<std::size_t> place_;         ///< Per parameter of the layout: where its norms are.
  /// This rank's share of each parameter, if it counts; then of each direction.
  std::vector<kernels::SumRange> ranges_;
  Tensor squares_;  ///< f64, block sums: of the parameters, then of the directions.
  Tensor mine_;     ///< Two ExactSum per parameter, as bytes.
  Tensor all_;      ///< The same of all ranks of the stage.
  Tensor norms_;    ///< f64 [parameters, 2].
  // The same in the host's memory, where it updates any of them.
  Tensor host_squares_;
  Tensor host_norms_;
};

}  // namespace zero3d
