// Attention backward on the CPU. One task per (sample, key/value head, part of its query heads)
// recomputes the probabilities block by block; within it the gradients of keys and values are
// summed over heads and query blocks in order, and the parts are added in order afterwards.
#include <cstdint>
#include <vector>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/attention.h"
#include "zero3d/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/attention_backward.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/attention_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

/// A block of queries: packed, and transposed for products whose columns are queries.
struct QueryBlock {
  std::int64_t first, count, columns;
  float *q, *q_t, *dout, *dout_t, *dq;
  HWY_ALIGN float lse[kBlock];
  HWY_ALIGN float delta[kBlock];  ///< dout . out, which is sum over keys of P dP.
};

struct Scratch {
  float *keys, *values, *scores, *gradients;
  KeptBits kept_bits;
};

/// From scores S and gradients dP (of the kept, scaled probabilities), both [keys, queries]:
/// S becomes those probabilities, dP becomes dS = P (dP - delta) * scale.
HWY_INLINE void differentiate(const AttentionArgs& a, const QueryBlock& block, std::int64_t keys,
                              const Visible& visible, Scratch* s) {
  const bool drop = a.dropout > 0;
  const Vec32 kept_scale = set(a.dropout < 1.0f ? 1.0f / (1.0f - a.dropout) : 0.0f);
  const Vec32 scale = set(a.scale);
  for (std::int64_t q = 0; q < block.columns; q += kStep) {
    const Visible::Range seen = visible.range(q, keys);
    const Vec32 lse = load(block.lse + q);
    const Vec32 delta = load(block.delta + q);
    const auto clear = [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
      for (std::int64_t k = begin; k < end; ++k) {
        store(set(0), s->scores + k * block.columns + q);
        store(set(0), s->gradients + k * block.columns + q);
      }
    };
    clear(0, seen.begin);
    seen.for_each([&](std::int64_t k, auto whole) HWY_ATTR {
      float* score = s->scores + k * block.columns + q;
      float* gradient = s->gradients + k * block.columns + q;
      Vec32 p = exp(hn::Sub(load(score), lse));
      if (!whole()) p = hn::IfThenElseZero(visible.lanes(q, k), p);
      Vec32 kept_p = p, dp = load(gradient);
      if (drop) {
        const auto lanes = kept_lanes(s->kept_bits, q, k);
        kept_p = hn::IfThenElseZero(lanes, hn::Mul(p, kept_scale));
        dp = hn::IfThenElseZero(lanes, hn::Mul(dp, kept_scale));
      }
      store(kept_p, score);
      store(hn::Mul(hn::Mul(p, hn::Sub(dp, delta)), scale), gradient);
    });
    // A tile reads up to its own length past the diagonal.
    clear(seen.end, HWY_MIN(keys, seen.end + kTileRows));
  }
}

template <typename T>
HWY_INLINE void load_queries(const AttentionGradientArgs& g, std::int64_t sample, std::int64_t head,
                             std::int64_t first, QueryBlock* block) {
  const AttentionArgs& a = g.forward;
  const std::int64_t width = packed_dim(a.head_dim), column = head * a.head_dim;
  const std::int64_t row = sample * a.seq + first;
  block->first = first;
  block->count = HWY_MIN(kBlock, a.seq - first);
  block->columns = whole_vectors(block->count);
  pack_rows(row_of<T>(a.q, row) + column, a.q.stride, block->count, a.head_dim, block->q);
  transpose(block->q, block->count, a.head_dim, a.scale, block->q_t, block->columns);
  pack_rows(row_of<T>(g.dout, row) + column, g.dout.stride, block->count, a.head_dim, block->dout);
  transpose(block->dout, block->count, a.head_dim, 1.0f, block->dout_t, block->columns);
  for (std::int64_t q = 0; q < block->columns; ++q) block->lse[q] = block->delta[q] = 0;
  for (std::int64_t q = 0; q < block->count; ++q) {
    const T* out = row_of<T>(g.out, row + q) + column;
    Vec32 sum = set(0);
    for_lanes(a.head_dim, [&](std::int64_t d, auto lanes) HWY_ATTR {
      sum = hn::MulAdd(load(out + d, lanes), load(block->dout + q * width + d), sum);
    });
    block->delta[q] = sum_of_lanes(sum);
    block->lse[q] = g.lse[(sample * a.heads + head) * a.seq + first + q];
  }
}

/// One block of queries against the blocks of keys that it sees, the diagonal's last. dk and dv are
/// [seq, packed_dim]; `opens`: the first head of the part, whose diagonal block writes them.
template <typename T>
HWY_INLINE void backward_query_block(const AttentionGradientArgs& g, std::int64_t sample,
                                     std::int64_t head, const QueryBlock& block, bool opens,
                                     Scratch* s, float* dk, float* dv) {
  const AttentionArgs& a = g.forward;
  const std::int64_t width = packed_dim(a.head_dim), dims = whole_vectors(a.head_dim);
  const std::int64_t kv_column = head / (a.heads / a.kv_heads) * a.head_dim;
  const std::int64_t columns = block.columns;
  const std::int64_t first = first_key(a, block.first);
  for (std::int64_t key = first; key <= block.first; key += kBlock) {
    const std::int64_t keys = HWY_MIN(kBlock, a.seq - key), row = sample * a.seq + key;
    const bool diagonal = key == block.first;
    const bool add = !(opens && diagonal);
    pack_rows(row_of<T>(a.k, row) + kv_column, a.k.stride, keys, a.head_dim, s->keys);
    pack_rows(row_of<T>(a.v, row) + kv_column, a.v.stride, keys, a.head_dim, s->values);
    const Causal scores = diagonal ? Causal::kScores : Causal::kNone;
    multiply(scores, keys, columns, a.head_dim, {s->keys, width, 1}, block.q_t, columns, s->scores,
             columns, false);
    multiply(scores, keys, columns, a.head_dim, {s->values, width, 1}, block.dout_t, columns,
             s->gradients, columns, false);
    if (a.dropout > 0)
      draw_kept(a, sample, head, block.first, block.count, key, keys, &s->kept_bits);
    differentiate(a, block, keys, Visible(a, block.first, key), s);
    const Causal over_queries = diagonal ? Causal::kKeys : Causal::kNone;
    multiply(over_queries, keys, dims, block.count, {s->scores, columns, 1}, block.dout, width,
             dv + key * width, width, add);
    multiply(over_queries, keys, dims, block.count, {s->gradients, columns, 1}, block.q, width,
             dk + key * width, width, add);
    multiply(diagonal ? Causal::kQueries : Causal::kNone, block.count, dims, keys,
             {s->gradients, 1, columns}, s->keys, width, block.dq, width, key > first);
  }
  for (std::int64_t q = 0; q < block.count; ++q) {
    T* to = row_of<T>(g.dq, sample * a.seq + block.first + q) + head * a.head_dim;
    for_lanes(a.head_dim, [&](std::int64_t d, auto lanes)
                              HWY_ATTR { store(load(block.dq + q * width + d), to + d, lanes); });
  }
}

/// Query heads [head, head + heads) of one sample, which share a key/value head.
void attention_backward_task(const AttentionGradientArgs& g, std::int64_t sample, std::int64_t head,
                             std::int64_t heads, float* dk, float* dv, float* floats) {
  with_type(g.forward.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    const std::int64_t size = kBlock * packed_dim(g.forward.head_dim);
    QueryBlock block;
    block.q = floats;
    block.q_t = floats + size;
    block.dout = floats + 2 * size;
    block.dout_t = floats + 3 * size;
    block.dq = floats + 4 * size;
    Scratch scratch;
    scratch.keys = floats + 5 * size;
    scratch.values = floats + 6 * size;
    scratch.scores = floats + 7 * size;
    scratch.gradients = scratch.scores + kBlock * kBlock;
    for (std::int64_t h = head; h < head + heads; ++h)
      for (std::int64_t first = 0; first < g.forward.seq; first += kBlock) {
        load_queries<T>(g, sample, h, first, &block);
        backward_query_block<T>(g, sample, h, block, h == head, &scratch, dk, dv);
      }
  });
}

/// dk and dv of rows [begin, end) (sample-major) of one key/value head: the parts' sums, each
/// part_size elements after the last.
void attention_backward_store(const AttentionGradientArgs& g, std::int64_t sample,
                              std::int64_t kv_head, std::int64_t parts, const float* sums,
                              std::int64_t part_size) {
  const AttentionArgs& a = g.forward;
  const std::int64_t width = packed_dim(a.head_dim);
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    for (const bool values : {false, true}) {
      const float* from = sums + (values ? a.seq * width : 0);
      for (std::int64_t t = 0; t < a.seq; ++t) {
        T* to = row_of<T>(values ? g.dv : g.dk, sample * a.seq + t) + kv_head * a.head_dim;
        for_lanes(a.head_dim, [&](std::int64_t d, auto lanes) HWY_ATTR {
          Vec32 sum = load(from + t * width + d);
          for (std::int64_t part = 1; part < parts; ++part)
            sum = hn::Add(sum, load(from + part * part_size + t * width + d));
          store(sum, to + d, lanes);
        });
      }
    }
  });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(attention_backward_task);
HWY_EXPORT(attention_backward_store);

namespace cpu {

std::int64_t attention_parts(std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t group = heads / kv_heads;
  for (std::int64_t parts = 1; parts < group; ++parts)
    if (group % parts == 0 && kv_heads * parts >= 16) return parts;
  return group;
}

std::int64_t attention_scratch(std::int64_t batch, std::int64_t seq, std::int64_t heads,
                               std::int64_t kv_heads, std::int64_t head_dim) {
  const std::int64_t width = (head_dim + 15) / 16 * 16;
  return batch * kv_heads * attention_parts(heads, kv_heads) * 2 * seq * width;
}

void attention_backward(const AttentionGradientArgs& args) {
  const AttentionArgs& a = args.forward;
  const std::int64_t width = (a.head_dim + 15) / 16 * 16;
  const std::int64_t parts = attention_parts(a.heads, a.kv_heads);
  const std::int64_t heads = a.heads / a.kv_heads / parts;  // of one part
  const std::int64_t part_size = 2 * a.seq * width;
  const auto floats =
      static_cast<std::size_t>(7 * kAttentionBlock * width + 2 * kAttentionBlock * kAttentionBlock);
  // A task is a (sample, part), and parts lie in the order of their heads.
  const std::int64_t tasks = a.batch * a.kv_heads * parts;
  parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* sums = args.scratch + i * part_size;
      HWY_DYNAMIC_DISPATCH(attention_backward_task)
      (args, i / (a.kv_heads * parts), i % (a.kv_heads * parts) * heads, heads, sums,
       sums + a.seq * width, thread_floats(floats));
    }
  });
  parallel_for(a.batch * a.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(attention_backward_store)
    (args, i / a.kv_heads, i % a.kv_heads, parts, args.scratch + i * parts * part_size, part_size);
  });
}

float* thread_floats(std::size_t count) {
  // Kept for the thread's life: a task's blocks fit the cache, and mapping them anew each time
  // costs more than small tasks themselves.
  thread_local std::vector<float> storage;
  constexpr std::size_t kAlignment = 64 / sizeof(float);
  if (storage.size() < count + kAlignment) storage.resize(count + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
  return storage.data() + (64 - address % 64) % 64 / sizeof(float);
}

}  // namespace cpu
}  // namespace zero3d::kernels
#endif  // HWY_ONCE
