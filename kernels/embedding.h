// Token and position embeddings.
#pragma once

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"
#include "zero3d/kernels/vocabulary_part.h"

namespace zero3d::kernels {

/// out[r] = table[tokens[r]] (+ positions[r % seq] if defined). tokens i32 [B, T]; out [B*T, C]. A
/// token outside the vocabulary fails the stream with Error(kInvalid) naming it. The table may hold
/// a part of the vocabulary; `others`: what becomes of rows of other tokens, positions or not.
void embedding_forward(Stream& stream, const ConstView& tokens, const ConstView& table,
                       const ConstView& positions, const View& out, const VocabularyPart& part,
                       OtherTokens others = OtherTokens::zero);
inline void embedding_forward(Stream& stream, const ConstView& tokens, const ConstView& table,
                              const ConstView& positions, const View& out) {
  embedding_forward(stream, tokens, table, positions, out,
                    VocabularyPart::all(table.shape().rows()));
}
/// dtable[tokens[r]] += dout[r], summed per table row in fp32 in row order and rounded once.
/// `accumulate` false: dtable is zeroed first. dtable may be undefined (frozen). Nothing is added
/// to the row of `padding` (-1: no such token), as torch's padding_idx, nor for tokens that `part`
/// does not hold.
void embedding_backward(Stream& stream, const ConstView& tokens, const ConstView& dout,
                        const View& dtable, bool accumulate, std::int64_t padding,
                        const VocabularyPart& part);
inline void embedding_backward(Stream& stream, const ConstView& tokens, const ConstView& dout,
                               const View& dtable, bool accumulate, std::int64_t padding = -1) {
  if (dtable.defined())
    embedding_backward(stream, tokens, dout, dtable, accumulate, padding,
                       VocabularyPart::all(dtable.shape().rows()));
}
/// dpositions[t] = sum over the batch of dout[b, t]; rows past seq are zeroed.
void position_backward(Stream& stream, const ConstView& dout, std::int64_t seq,
                       const View& dpositions, bool accumulate);

}  // namespace zero3d::kernels
