// Elementwise activations, forward and backward, and dropout.
#pragma once

#include "zero3d/core/random.h"
#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"
#include "zero3d/kernels/sample_rows.h"

namespace zero3d::kernels {

/// y = gelu_new(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); y may be x.
void gelu_forward(Stream& stream, const ConstView& x, const View& y);
/// dx = dy * gelu_new'(x); dx may be dy.
void gelu_backward(Stream& stream, const ConstView& dy, const ConstView& x, const View& dx);

/// y = silu(gate) * up, each [rows, width]; as transformers does, silu is rounded to the dtype
/// before the product.
void swiglu_forward(Stream& stream, const ConstColumns& gate, const ConstColumns& up,
                    const View& y);
void swiglu_backward(Stream& stream, const ConstView& dy, const ConstColumns& gate,
                     const ConstColumns& up, const Columns& dgate, const Columns& dup);
/// The same with gelu_new in the place of silu.
void geglu_forward(Stream& stream, const ConstColumns& gate, const ConstColumns& up, const View& y);
void geglu_backward(Stream& stream, const ConstView& dy, const ConstColumns& gate,
                    const ConstColumns& up, const Columns& dgate, const Columns& dup);

/// y = x * keep / (1 - p) (+ residual if defined), where element e of row r (sample = key.sample +
/// r / rows.count) is kept iff its uniform number is at least p; e counts within the whole sample.
/// Backward is the same call on dy.
void dropout(Stream& stream, const ConstView& x, float p, const RandomKey& key,
             const SampleRows& rows, const ConstView& residual, const View& y);

}  // namespace zero3d::kernels
