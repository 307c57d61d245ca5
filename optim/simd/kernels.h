// The loops behind the update rules: plain pointers and constants in, one table of functions per
// instruction set. An element's result depends on its own inputs and the constants only: not on its
// index, the range, the alignment or the table (NaN payloads excepted).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "zero3d/core/dtype.h"
#include "zero3d/optim/isa.h"

namespace zero3d::simd {

struct Array {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
};

/// What a loop reads and writes; f32, bf16 or f16 each. Which of them a rule touches is stated with
/// its constants.
struct ElementArrays {
  Array master;
  Array gradient;
  std::array<Array, 3> states;
  Array copy;  ///< Gets the new master, rounded; no data: none.
};

/// Bias corrections folded in; each computed in double, then rounded. master and states 0, 1 are
/// updated.
struct AdamConstants {
  float factor, one_minus_beta1, one_minus_beta2;
  float inverse_root_correction2;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
  float step_size;  ///< lr / (1 - beta1^t)
  float decay;      ///< Decoupled: lr * weight_decay. Classic: weight_decay.
};

/// State 0 (momentum) and master.
struct LionConstants {
  float factor, one_minus_beta1, one_minus_beta2, lr,
      decay;  ///< decay: lr * weight_decay
};

/// State 0 (sum of squares) and master.
struct AdagradConstants {
  float factor, lr, eps, weight_decay;
};

/// State 0 (momentum buffer, only when momentum != 0) and master.
struct SgdConstants {
  float factor, lr, weight_decay, momentum;
  float take;  ///< Of the new gradient into the buffer: 1 - dampening; 1 for the first update.
  bool nesterov;
};

/// State 0 (square average), then the momentum buffer and the gradient average, where the variant
/// has them; master.
struct RmspropConstants {
  float factor, lr, one_minus_alpha, eps, weight_decay, momentum;
};

/// Pass 1 of LAMB: states 0, 1 updated, state 2 (the direction) written, master read.
struct LambConstants {
  float factor, one_minus_beta1, one_minus_beta2, eps, weight_decay;
  bool eps_inside_root;
};

/// master -= rate * gradient + decay * master: LAMB's pass 2, Muon's and plain descent's step.
struct DescentConstants {
  float rate, decay;
};

/// Muon: state 0 = momentum * state 0 + (1 - momentum) * gradient; state 1 (written) = the Nesterov
/// blend.
struct BlendConstants {
  float factor, momentum, one_minus_momentum;
};

/// Reads what Adam reads and writes what it writes, the f32 arrays unchanged: the machine's ceiling
/// for it. The copy gets bytes of the gradient; a few elements at the end of a range are left out.
struct NullConstants {
  std::uint32_t zero = 0;  ///< Must be 0; unknown to the compiler.
};

template <typename Constants>
using Loop = void (*)(const Constants&, const ElementArrays&, std::int64_t begin, std::int64_t end);

struct KernelTable {
  Loop<AdamConstants> adam_decoupled;
  Loop<AdamConstants> adam_classic;
  Loop<LionConstants> lion;
  Loop<AdagradConstants> adagrad;
  Loop<SgdConstants> sgd;           ///< Without a momentum buffer.
  Loop<SgdConstants> sgd_momentum;  ///< With one.
  Loop<RmspropConstants> rmsprop;
  Loop<RmspropConstants> rmsprop_momentum;
  Loop<RmspropConstants> rmsprop_centered;
  Loop<RmspropConstants> rmsprop_centered_momentum;
  Loop<LambConstants> lamb;
  Loop<DescentConstants> descent;
  Loop<BlendConstants> blend;
  Loop<NullConstants> null_update;
};

/// The table of an instruction set that choose_isa() returned.
const KernelTable& kernels(Isa isa);

const KernelTable& scalar_kernels();

}  // namespace zero3d::simd
