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
#include "zero3d/kernels/optimizer.h"

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

using kernels::UpdateSlice;

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
  float initial = 0;  ///< Every element's value before the first update.
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string name() const = 0;  ///< "AdamW".
  virtual RuleNeeds needs() const { return RuleNeeds::elementwise; }
  virtual std::vector<StateSpec> states() const = 0;
  /// One line stating the rule and its constants, for the start-up log: who decays how.
  virtual std::string description() const = 0;
  /// Enqueues the update of `slices` on `stream` as one launch. A TensorNormRule has prepare() and
  /// apply() instead and throws Error(kInternal) here; a MatrixRule expects the orthogonalised
  /// gradient.
  virtual void update(Stream& stream, const GroupSettings& group, const StepContext& context,
                      std::span<const UpdateSlice> slices) const = 0;
};

/// A rule with RuleNeeds::tensor_norms: two elementwise passes with norms over whole parameters in
/// between.
class TensorNormRule : public UpdateRule {
 public:
  /// Beside a slice: all of one rank's share of one parameter, or a part that begins at a multiple
  /// of 1,024 elements of it.
  struct Scratch {
    View direction;       ///< f32, numel of the slice: the step before its trust ratio. Kept until
                          ///< apply().
    View parameter_sums;  ///< f64 [ceil(numel / 1024)]: square sums of the master, by blocks.
    View direction_sums;  ///< f64, likewise, of the direction.
  };

  RuleNeeds needs() const final { return RuleNeeds::tensor_norms; }
  /// Enqueues pass 1: updates the states and fills the scratch. The engine adds the block sums up
  /// over the slices and ranks of each parameter, in index order.
  virtual void prepare(Stream& stream, const GroupSettings& group, const StepContext& context,
                       std::span<const UpdateSlice> slices,
                       std::span<const Scratch> scratch) const = 0;
  /// Enqueues pass 2: updates the masters. norms[i]: f64 [2], the sums of squares of the whole
  /// parameter that slice i belongs to and of its whole direction.
  virtual void apply(Stream& stream, const GroupSettings& group, const StepContext& context,
                     std::span<const UpdateSlice> slices, std::span<const Scratch> scratch,
                     std::span<const ConstView> norms) const = 0;
};

/// A rule with RuleNeeds::whole_matrices, in three steps: blend() on slices; the engine gathers
/// each parameter's whole blended gradient and has it orthogonalised; update() on slices, with the
/// orthogonalised gradient as the gradient. Order under ZeRO as in DeepSpeed: first look for
/// non-finite gradients (a step skipped must not reach blend), blend with gradient_factor = 1 /
/// loss scale, orthogonalise, then take the global norm (of orthogonalised gradients here, of plain
/// ones for the Adam half), clip, and update with the clip coefficient alone as gradient_factor.
class MatrixRule : public UpdateRule {
 public:
  RuleNeeds needs() const final { return RuleNeeds::whole_matrices; }
  /// Enqueues, per slice: the momentum's update, and blended[i] (f32, may be the gradient's own
  /// bytes) = what is to be orthogonalised. Reads the slices' gradient and state; leaves the master
  /// alone.
  virtual void blend(Stream& stream, const GroupSettings& group, const StepContext& context,
                     std::span<const UpdateSlice> slices, std::span<const View> blended) const = 0;
  /// f32 elements of scratch that orthogonalise() needs for a parameter of this shape.
  virtual std::int64_t scratch_numel(const Shape& shape) const = 0;
  /// Enqueues matrix = its orthogonalisation, in place. f32, whole, at least 2 dims (more are
  /// [first, the rest]); `scratch` f32 [scratch_numel]. The same bits on every rank and for any
  /// number of threads.
  virtual void orthogonalise(Stream& stream, const View& matrix, const View& scratch) const = 0;
};

}  // namespace zero3d
