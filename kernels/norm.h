// LayerNorm and RMSNorm over the last dim, forward and backward. Statistics in fp32 [rows];
// parameters in the dtype of x.
#pragma once

#include <cstdint>

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d::kernels {

/// y = (x - mean) / sqrt(var + eps) * weight + bias. `mean` and `rstd` are saved for backward
/// (undefined: not stored).
void layer_norm_forward(Stream& stream, const ConstView& x, const ConstView& weight,
                        const ConstView& bias, float eps, const View& y, const View& mean,
                        const View& rstd);
/// dx = d(loss)/dx (+ dx_residual if defined: the gradient that reached x by its other path; may be
/// dx itself).
void layer_norm_backward_input(Stream& stream, const ConstView& dy, const ConstView& x,
                               const ConstView& weight, const ConstView& mean,
                               const ConstView& rstd, const ConstView& dx_residual, const View& dx);
/// dweight, dbias: written (accumulate: added to). Either may be undefined.
void layer_norm_backward_weight(Stream& stream, const ConstView& dy, const ConstView& x,
                                const ConstView& mean, const ConstView& rstd, const View& dweight,
                                const View& dbias, bool accumulate = false);

/// What RMSNorm multiplies the normalised row by, and where it rounds.
enum class RmsFactor : std::uint8_t {
  weight,          ///< round(round(n) * weight), as transformers' LlamaRMSNorm.
  one_plus_weight  ///< round(n * (1 + weight)), as its GemmaRMSNorm.
};

/// y = n * factor, with n = x / sqrt(mean(x^2) + eps).
void rms_norm_forward(Stream& stream, const ConstView& x, const ConstView& weight, float eps,
                      const View& y, const View& rstd, RmsFactor factor = RmsFactor::weight);
/// As layer_norm_backward_input; dx may also be dy.
void rms_norm_backward_input(Stream& stream, const ConstView& dy, const ConstView& x,
                             const ConstView& weight, const ConstView& rstd,
                             const ConstView& dx_residual, const View& dx,
                             RmsFactor factor = RmsFactor::weight);
void rms_norm_backward_weight(Stream& stream, const ConstView& dy, const ConstView& x,
                              const ConstView& rstd, const View& dweight, bool accumulate = false,
                              RmsFactor factor = RmsFactor::weight);

}  // namespace zero3d::kernels
