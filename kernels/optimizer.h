// The update loops of the optimizers: constants in, one launch over slices out. An element's result
// depends on its own inputs and the constants only: not on its index, the range, the alignment or
// the instruction set (NaN payloads excepted). No fused multiply-add.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"
#include "zero3d/kernels/isa.h"

namespace zero3d::kernels {

/// A contiguous run of elements to update. All views have the same numel.
struct UpdateSlice {
  View master;  ///< f32 (bf16 or f16 with *_master_weights_and_grads): read and written.
  ConstView
      gradient;  ///< f32, bf16 or f16: the reduced, averaged gradient, still times the loss scale.
  std::vector<View> states;  ///< rule.states().size() views, in that order, each f32 or bf16.
  View copy;  ///< The training parameter to write round(master) to; undefined when master is the
              ///< parameter.
};
using Slices = std::span<const UpdateSlice>;

/// Bias corrections folded in; each computed in double, then rounded. master and states 0, 1 are
/// updated.
struct AdamConstants {
  float factor, one_minus_beta1, one_minus_beta2;
  float inverse_root_correction2;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
  float step_size;  ///< lr / (1 - beta1^t)
  float decay;      ///< Decoupled: lr * weight_decay. Classic: weight_decay.
  bool decoupled;
};

/// State 0 (momentum) and master.
struct LionConstants {
  float factor, one_minus_beta1, one_minus_beta2, lr;
  float decay;  ///< lr * weight_decay
};

/// State 0 (sum of squares) and master.
struct AdagradConstants {
  float factor, lr, eps, weight_decay;
};

/// State 0 (momentum buffer, only when has_momentum) and master.
struct SgdConstants {
  float factor, lr, weight_decay, momentum;
  float take;  ///< Of the new gradient into the buffer: 1 - dampening; 1 for the first update.
  bool nesterov;
  bool has_momentum;
};

/// State 0 (square average), then the momentum buffer and the gradient average, where the variant
/// has them; master.
struct RmspropConstants {
  float factor, lr, one_minus_alpha, eps, weight_decay, momentum;
  bool has_momentum;
  bool centered;
};

/// States 0, 1 updated, the direction written, master read.
struct LambConstants {
  float factor, one_minus_beta1, one_minus_beta2, eps, weight_decay;
  bool eps_inside_root;
};

/// master -= step_size * trust_ratio() * direction, rounded to one fp32 factor.
struct LambStepConstants {
  double step_size, min_coeff, max_coeff;
};
/// |parameter| / |direction| from their sums of squares, held to [min_coeff, max_coeff]; 1 when
/// either is 0.
double trust_ratio(const LambStepConstants& constants, double parameter_squares,
                   double direction_squares);

/// master -= rate * gradient + decay * master.
struct DescentConstants {
  float rate, decay;
};

/// Muon: state 0 = momentum * state 0 + (1 - momentum) * gradient; the Nesterov blend is written.
struct BlendConstants {
  float factor, momentum, one_minus_momentum;
};

/// Reads what Adam reads and writes what it writes, the f32 arrays unchanged: the machine's ceiling
/// for it. The copy gets bytes of the gradient; a few elements at the end of a range are left out.
struct NullConstants {
  std::uint32_t zero = 0;  ///< Must be 0; unknown to the compiler.
};

/// Each enqueues one launch; `isa` chooses the loop of a CPU. Throws Error(kInternal) when views
/// disagree in number or have a dtype the loops do not take.
void adam(Stream& stream, Slices slices, const AdamConstants& constants, Isa isa);
void lion(Stream& stream, Slices slices, const LionConstants& constants, Isa isa);
void adagrad(Stream& stream, Slices slices, const AdagradConstants& constants, Isa isa);
void sgd(Stream& stream, Slices slices, const SgdConstants& constants, Isa isa);
void rmsprop(Stream& stream, Slices slices, const RmspropConstants& constants, Isa isa);
void descent(Stream& stream, Slices slices, const DescentConstants& constants, Isa isa);
void null_update(Stream& stream, Slices slices, const NullConstants& constants, Isa isa);
/// directions[i] and blended[i]: f32, of slice i's numel; written.
void lamb_direction(Stream& stream, Slices slices, std::span<const View> directions,
                    const LambConstants& constants, Isa isa);
void muon_blend(Stream& stream, Slices slices, std::span<const View> blended,
                const BlendConstants& constants, Isa isa);
/// The slices' gradients are directions. norms[i]: f64 [2], the sums of squares of the parameter
/// that slice i belongs to and of its direction; read when the launch runs.
void lamb_step(Stream& stream, Slices slices, std::span<const ConstView> norms,
               const LambStepConstants& constants, Isa isa);

}  // namespace zero3d::kernels
