// Fused softmax cross-entropy over logits [rows, vocabulary] in any float dtype; arithmetic in fp32
// on the logits as they are.
#pragma once

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"
#include "zero3d/kernels/vocabulary_part.h"

namespace zero3d::kernels {

inline constexpr std::int32_t kIgnoreTarget = -100;

/// loss[0] = sum over rows with target != kIgnoreTarget of -log softmax(logits)[target]; loss[1] =
/// how many rows that is (fp32 [2]). lse: fp32 [rows], log of the softmax denominator, for
/// backward. A target outside the vocabulary fails the stream.
void cross_entropy_forward(Stream& stream, const ConstView& logits, const ConstView& targets,
                           const View& lse, const View& loss);
/// The same in two halves, for logits [rows, columns] of a part of the vocabulary: what each part
/// knows of its rows, fp32 [3, rows], and from that of all parts, fp32 [parts, 3, rows], the whole.
/// Columns that are padding count for nothing. A target outside the whole vocabulary fails the
/// stream. Parts that go on join what is known from those before; where each begins at a
/// multiple of 2,048 entries, the join of what the last one leaves is cross_entropy_forward, to
/// the bit.
enum class Statistics { begin, go_on };
void cross_entropy_statistics(Stream& stream, const ConstView& logits, const ConstView& targets,
                              const VocabularyPart& part, const View& statistics,
                              Statistics how = Statistics::begin);
void cross_entropy_join(Stream& stream, const ConstView& statistics, const ConstView& targets,
                        const View& lse, const View& loss);

/// Turns logits into their gradient in place: (softmax - onehot) * seed[0] / loss[1], zero for
/// ignored rows (and everywhere when loss[1] is 0), and in columns that are padding. seed: fp32
/// [1], the gradient of the mean loss.
void cross_entropy_backward(Stream& stream, const View& logits, const ConstView& targets,
                            const ConstView& lse, const ConstView& loss, const ConstView& seed,
                            const VocabularyPart& part);
inline void cross_entropy_backward(Stream& stream, const View& logits, const ConstView& targets,
                                   const ConstView& lse, const ConstView& loss,
                                   const ConstView& seed) {
  cross_entropy_backward(stream, logits, targets, lse, loss, seed,
                         VocabularyPart::all(logits.shape().last()));
}

/// means (f64 [2]) = or += (loss[0] / loss[1], 1); nothing when no token counted.
void add_mean_loss(Stream& stream, const ConstView& loss, const View& means, bool accumulate);

}  // namespace zero3d::kernels
