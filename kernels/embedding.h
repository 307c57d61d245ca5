// Token and position embeddings.
#pragma once

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d::kernels {

/// What of a vocabulary a table has: its row i is that of token first + i. Tokens of other tables
/// are passed over.
struct TableRows {
  std::int64_t first = 0;
  std::int64_t vocabulary = -1;  ///< -1: the table has all of it.
};

/// out[r] = table[tokens[r]] (+ positions[r % seq] if defined). tokens i32 [B, T]; out [B*T, C]. A
/// token outside the vocabulary fails the stream with Error(kInvalid) naming it. Rows of out that
/// belong to tokens of other tables are left alone.
void embedding_forward(Stream& stream, const ConstView& tokens, const ConstView& table,
                       const ConstView& positions, const View& out, TableRows rows = {});
/// dtable[tokens[r]] += dout[r], summed per table row in fp32 in row order and rounded once.
/// `accumulate` false: dtable is zeroed first. dtable may be undefined (frozen). Nothing is added
/// to the row of `padding` (-1: no such token), as torch's padding_idx.
void embedding_backward(Stream& stream, const ConstView& tokens, const ConstView& dout,
                        const View& dtable, bool accumulate, std::int64_t padding = -1,
                        TableRows rows = {});
/// dpositions[t] = sum over the batch of dout[b, t]; rows past seq are zeroed.
void position_backward(Stream& stream, const ConstView& dout, std::int64_t seq,
                       const View& dpositions, bool accumulate);

}  // namespace zero3d::kernels
