// Update rules of optimizers on local slices. A rule knows nothing of ranks, stages or tiers: the
// engine hands it slices of parameters with their gradients and states, and supplies what else it
// states it needs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d {

/// What a rule needs beyond its own slice.
enum class RuleNeeds {
  elementwise,    ///< Nothing: an element's update depends on that element alone.
  tensor_norms,   ///< Norms over each whole parameter (LAMB's trust ratio).
  whole_matrices  ///< Each parameter's whole averaged gradient as a matrix (Muon).
};

/// Per-group settings, as they are for this step. Rules read what they define.
struct GroupSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
};

/// A contiguous run of elements that this rank updates. All views have the same numel.
struct UpdateSlice {
  View master;  ///< f32 (bf16 or f16 with *_master_weights_and_grads): read and written.
  ConstView
      gradient;  ///< f32, bf16 or f16: the reduced, averaged gradient, still times the loss scale.
  std::vector<View> states;  ///< rule.states().size() views, in that order, each f32 or bf16.
  View copy;  ///< The training parameter to write round(master) to; undefined when master is the
              ///< parameter.
};

/// What one step is, the same for all slices.
struct StepContext {
  std::int64_t step = 1;         ///< 1 for the first applied step of the run.
  float gradient_factor = 1.0f;  ///< Multiplies the gradient first: clip coefficient / loss scale.
};

/// One state per element that the rule keeps, by the name DeepSpeed's checkpoints give it
/// ("exp_avg").
struct StateSpec {
  std::string name;
  bool may_be_bf16 = false;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string name() const = 0;  ///< "AdamW".
  virtual RuleNeeds needs() const { return RuleNeeds::elementwise; }
  virtual std::vector<StateSpec> states() const = 0;
  /// One line stating the rule and its constants, for the start-up log: who decays how.
  virtual std::string description() const = 0;
  /// Enqueues the update of `slices` on `stream` as one launch. Elementwise rules only.
  virtual void update(Stream& stream, const GroupSettings& group, const StepContext& context,
                      std::span<const UpdateSlice> slices) const = 0;
};

}  // namespace zero3d
