// Causal multi-head attention with grouped keys and values, by blocks with an online softmax: no
// [T, T] matrix is ever made, and blocks above the diagonal or before the window are skipped. Query
// head h uses key/value head h / (heads / kv_heads).
#pragma once

#include <span>

#include "zero3d/core/random.h"
#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"
#include "zero3d/kernels/sample_rows.h"

namespace zero3d::kernels {

struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t window = 0;  ///< Sliding window: query t sees keys t - window + 1 to t; 0: 0 to t.
  float scale = 0;          ///< Of the scores; usually 1 / sqrt(head_dim).
  float dropout = 0;  ///< Of the probabilities; key.layer and sample (= key.sample + batch row)
                      ///< name the numbers.
  std::int64_t head_offset = 0;  ///< Heads before these in the whole model: dropout counts all.
  RandomKey key;
};

/// q: [B*T, heads*head_dim], k and v: [B*T, kv_heads*head_dim] as columns of row-major matrices,
/// out likewise. lse: fp32 [B, heads, T], the log of the softmax denominator, kept for backward.
void attention_forward(Stream& stream, const AttentionShape& shape, const ConstColumns& q,
                       const ConstColumns& k, const ConstColumns& v, const Columns& out,
                       const View& lse);

/// Recomputes the probabilities block by block. dq, dk, dv are written; they may be columns of one
/// matrix, but not overlap what is read. `scratch` is fp32, at least attention_backward_scratch
/// elements.
void attention_backward(Stream& stream, const AttentionShape& shape, const ConstColumns& dout,
                        const ConstColumns& q, const ConstColumns& k, const ConstColumns& v,
                        const ConstColumns& out, const ConstView& lse, const Columns& dq,
                        const Columns& dk, const Columns& dv, const View& scratch);
/// Elements of fp32 scratch that attention_backward needs.
std::int64_t attention_backward_scratch(const AttentionShape& shape);

/// Rotary position embedding, in place, in the rotate-half convention of transformers: for each row
/// t = seq.first + row % seq.count and each head of `x`, pair (i, i + head_dim/2) turns by angle t
/// * inverse_frequencies[i] (head_dim/2 of them, in the host's memory until the call returns); cos
/// and sin are scaled by `attention_scaling` and rounded to x's dtype as transformers does.
/// inverse: turn backwards (the gradient).
void rope(Stream& stream, const Columns& x, const SampleRows& seq, std::int64_t head_dim,
          std::span<const float> inverse_frequencies, float attention_scaling, bool inverse);

}  // namespace zero3d::kernels
