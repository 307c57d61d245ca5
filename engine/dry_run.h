// What the activations of a step take, found by running its operations on a device that only
// counts: the same blocks, runner and order as the real run, so that no block needs to say its
// bytes.
#pragma once

#include <cstdint>
#include <span>

#include "zero3d/device/device.h"
#include "zero3d/engine/module.h"
#include "zero3d/engine/parameter_access.h"
#include "zero3d/engine/pipeline/border.h"
#include "zero3d/engine/schedule.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {

/// Parameters and gradients as addresses, of the device's memory or of none.
class DryParameters final : public ParameterAccess {
 public:
  DryParameters(const ParamLayout& layout, DType dtype, Device& device);
  /// On a device that has memory: zeros for what is to run on them.
  void fill_zero(Stream& stream);

  std::vector<ConstView> acquire(const Op& op) override;
  void begin_backward(int, bool) override {}
  std::vector<GradientTarget> gradients(const Op& op) override;
  void release(const Op&) override {}
  void add_loss(const ConstView&) override {}

 private:
  const ParamLayout& layout_;
  std::vector<Tensor> values_;
  std::vector<Tensor> gradients_;
};

struct ActivationBytes {
  std::int64_t device = 0;
  std::int64_t pinned = 0;  ///< Of inputs that are kept on the host.
};

/// What rank runs them.
struct DryRunRank {
  TensorParallel tp = {};
  bool splits_kept = false;
  SequenceParallel sp = {};
};

/// The highest sum of bytes that blocks and runner hold at once, for each tier by itself, over the
/// steps of a run: `training` again and again, and evaluation, on micro-batches of [batch,
/// sequence], on such a rank. `borders`: what the stage receives and sends with such batches in
/// training, and in evaluation. What blocks throw for them goes on.
ActivationBytes peak_activation_bytes(const Module& module, const ParamLayout& layout,
                                      std::span<const Op> training, DType dtype, std::int64_t batch,
                                      std::int64_t sequence, const DryRunRank& rank,
                                      const StageBlocks& stage, const Borders& borders,
                                      const Borders& evaluation_borders);
/// Of a module that runs whole.
ActivationBytes peak_activation_bytes(const Module& module, const ParamLayout& layout,
                                      std::span<const Op> training, DType dtype, std::int64_t batch,
                                      std::int64_t sequence, const DryRunRank& rank = {});

}  // namespace zero3d
