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
/// The logits may be those from the class `first` of the vocabulary on.
void cross_entropy_backward(Stream& stream, const View& logits, const ConstView& targets,
                            const ConstView& lse, const ConstView& loss, const ConstView& seed,
                            std::int64_t first = 0);

/// The forward pass on a vocabulary in tiles: for one after the other, from class 0 on, its logits
/// [rows, any] join what is known of each row. state: fp32 [rows, 3], the largest logit, the sum of
/// exp(logit - largest), and the target's logit. Where tiles begin at multiples of 2,048 classes
/// the result is that of cross_entropy_forward, to the bit.
void cross_entropy_tile(Stream& stream, const ConstView& logits, const ConstView& targets,
                        std::int64_t first, std::int64_t vocabulary, const View& state);
/// After the last tile: lse and loss of cross_entropy_forward.
void cross_entropy_finish(Stream& stream, const ConstView& state, const ConstView& targets,
                          const View& lse, const View& loss);

/// means (f64 [2]) = or += (loss[0] / loss[1], 1); nothing when no token counted.
void add_mean_loss(Stream& stream, const ConstView& loss, const View& means, bool accumulate);

}  // namespace zero3d::kernels
