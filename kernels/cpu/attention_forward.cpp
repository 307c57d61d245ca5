// Attention forward on the CPU: one task per (sample, head, block of queries) walks the blocks of
// keys from the window's first to the diagonal with a running maximum and sum.
#include <cmath>
#include <limits>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/attention.h"
#include "zero3d/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/attention_forward.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/attention_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

/// Running maximum and sum of each query of the block, and what the last block of keys scaled them
/// by.
struct Softmax {
  HWY_ALIGN float max[kBlock];
  HWY_ALIGN float sum[kBlock];
  HWY_ALIGN float rescale[kBlock];
};

/// Turns scores [keys, queries] into exp(score - max), zero where the mask or dropout says.
HWY_INLINE void exponentiate(float* scores, std::int64_t keys, std::int64_t columns,
                             const Visible& visible, const KeptBits* kept_bits, Softmax* softmax) {
  for (std::int64_t q = 0; q < columns; q += kStep) {
    const Visible::Range seen = visible.range(q, keys);
    const Vec32 old_max = load(softmax->max + q);
    Vec32 max = old_max;
    seen.for_each([&](std::int64_t k, auto whole) HWY_ATTR {
      const Vec32 raised = hn::Max(load(scores + k * columns + q), max);
      max = whole() ? raised : hn::IfThenElse(visible.lanes(q, k), raised, max);
    });
    const Vec32 rescale = exp(hn::Sub(old_max, max));
    Vec32 sum = hn::Mul(load(softmax->sum + q), rescale);
    for (std::int64_t k = 0; k < seen.begin; ++k) store(set(0), scores + k * columns + q);
    seen.for_each([&](std::int64_t k, auto whole) HWY_ATTR {
      float* at = scores + k * columns + q;
      Vec32 p = exp(hn::Sub(load(at), max));
      if (!whole()) p = hn::IfThenElseZero(visible.lanes(q, k), p);
      sum = hn::Add(sum, p);
      if (kept_bits != nullptr) p = hn::IfThenElseZero(kept_lanes(*kept_bits, q, k), p);
      store(p, at);
    });
    // A tile of queries reads up to its own length past its first query.
    for (std::int64_t k = seen.end; k < HWY_MIN(keys, seen.end + kTileRows); ++k)
      store(set(0), scores + k * columns + q);
    store(max, softmax->max + q);
    store(sum, softmax->sum + q);
    store(rescale, softmax->rescale + q);
  }
}

template <typename T>
void attention_forward_block(const AttentionArgs& a, std::int64_t sample, std::int64_t head,
                             std::int64_t block, float* floats) {
  const std::int64_t width = packed_dim(a.head_dim), dims = whole_vectors(a.head_dim);
  const std::int64_t first = block * kBlock, queries = HWY_MIN(kBlock, a.seq - first);
  const std::int64_t columns = whole_vectors(queries), row = sample * a.seq;
  const std::int64_t kv_column = head / (a.heads / a.kv_heads) * a.head_dim;
  const std::int64_t column = head * a.head_dim;
  float* packed = floats;  // queries first, then each block's keys and values
  float* queries_t = packed + kBlock * width;
  float* scores = queries_t + kBlock * width;
  float* out = scores + kBlock * kBlock;

  pack_rows(row_of<T>(a.q, row + first) + column, a.q.stride, queries, a.head_dim, packed);
  transpose(packed, queries, a.head_dim, a.scale, queries_t, columns);
  Softmax softmax;
  for (std::int64_t q = 0; q < columns; ++q) {
    softmax.max[q] = std::numeric_limits<float>::lowest();
    softmax.sum[q] = 0;
  }
  KeptBits kept_bits;
  const std::int64_t opens = first_key(a, first);
  for (std::int64_t key = opens; key <= first; key += kBlock) {
    const std::int64_t keys = HWY_MIN(kBlock, a.seq - key);
    const bool diagonal = key == first;
    pack_rows(row_of<T>(a.k, row + key) + kv_column, a.k.stride, keys, a.head_dim, packed);
    multiply(diagonal ? Causal::kScores : Causal::kNone, keys, columns, a.head_dim,
             {packed, width, 1}, queries_t, columns, scores, columns, false);
    if (a.dropout > 0) draw_kept(a, sample, head, first, queries, key, keys, &kept_bits);
    exponentiate(scores, keys, columns, Visible(a, first, key),
                 a.dropout > 0 ? &kept_bits : nullptr, &softmax);
    if (key > opens)
      for (std::int64_t q = 0; q < queries; ++q)
        for (std::int64_t d = 0; d < dims; d += kStep) {
          float* at = out + q * width + d;
          store(hn::Mul(load(at), set(softmax.rescale[q])), at);
        }
    pack_rows(row_of<T>(a.v, row + key) + kv_column, a.v.stride, keys, a.head_dim, packed);
    multiply(diagonal ? Causal::kQueries : Causal::kNone, queries, dims, keys, {scores, 1, columns},
             packed, width, out, width, key > opens);
  }
  for (std::int64_t q = 0; q < queries; ++q) {
    const float keep = a.dropout < 1.0f ? 1.0f - a.dropout : 1.0f;
    const Vec32 factor = set(1.0f / (softmax.sum[q] * keep));
    T* to = row_of<T>(a.out, row + first + q) + column;
    for_lanes(a.head_dim, [&](std::int64_t d, auto lanes) HWY_ATTR {
      store(hn::Mul(load(out + q * width + d), factor), to + d, lanes);
    });
    a.lse[(sample * a.heads + head) * a.seq + first + q] =
        softmax.max[q] + std::log(softmax.sum[q]);
  }
}

void attention_forward_task(const AttentionArgs& a, std::int64_t sample, std::int64_t head,
                            std::int64_t block, float* floats) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    attention_forward_block<decltype(tag)>(a, sample, head, block, floats);
  });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(attention_forward_task);

namespace cpu {

void attention_forward(const AttentionArgs& args) {
  const std::int64_t blocks = (args.seq + kAttentionBlock - 1) / kAttentionBlock;
  const std::int64_t width = (args.head_dim + 15) / 16 * 16;
  const auto floats =
      static_cast<std::size_t>(3 * kAttentionBlock * width + kAttentionBlock * kAttentionBlock);
  parallel_for(args.batch * args.heads * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      // The longest tasks, those of the last queries, first.
      const std::int64_t block = blocks - 1 - i / (args.batch * args.heads);
      const std::int64_t pair = i % (args.batch * args.heads);
      HWY_DYNAMIC_DISPATCH(attention_forward_task)
      (args, pair / args.heads, pair % args.heads, block, thread_floats(floats));
    }
  });
}

}  // namespace cpu
}  // namespace zero3d::kernels
#endif  // HWY_ONCE
