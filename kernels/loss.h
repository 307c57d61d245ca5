// Fused softmax cross-entropy over logits [rows, vocabulary] in any float dtype; arithmetic in fp32
// on the logits as they are.
#pragma once

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d::kernels {

inline constexpr std::int32_t kIgnoreTarget = -100;

/// loss[0] = sum over rows with target != kIgnoreTarget of -log softmax(logits)[target]; loss[1] =
/// how many rows that is (fp32 [2]). lse: fp32 [rows], log of the softmax denominator, for
/// backward. A target outside the vocabulary fails the stream.
void cross_entropy_forward(Stream& stream, const ConstView& logits, const ConstView& targets,
                           const View& lse, const View& loss);
/// Turns logits into their gradient in place: (softmax - onehot) * seed[0] / loss[1], zero for
/// ignored rows (and everywhere when loss[1] is 0). seed: fp32 [1], the gradient of the mean loss.
void cross_entropy_backward(Stream& stream, const View& logits, const ConstView& targets,
                            const ConstView& lse, const ConstView& loss, const ConstView& seed);

/// means (f64 [2]) = or += (loss[0] / loss[1], 1); nothing when no token counted.
void add_mean_loss(Stream& stream, const ConstView& loss, const View& means, bool accumulate);

}  // namespace zero3d::kernels
