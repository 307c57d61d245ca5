// Attention backward on tensor cores, for bf16 and f16 with head dims of 64, 96, 128 and 256, in
// the two passes of attention_backward.cu: a block of four warps owns 64 keys, or 64 queries, and
// walks the tiles of the others. Probabilities and gradients of scores are rounded to the dtype
// before they weigh rows; all sums are fp32, and made by one warp in a fixed order.
#include "zero3d/kernels/cuda/attention_matrix.cuh"
#include "zero3d/kernels/cuda/attention_matrix.h"
#include "zero3d/kernels/cuda/attention_tiles.cuh"

namespace zero3d::kernels::cuda {
namespace {

constexpr int kOwn = 16 * kWarps;

template <int kDims>
struct Shape {
  static constexpr int kSeen = kDims > 128 ? 16 : 32;  // rows of the other side at once
  static constexpr std::size_t kBytes =
      static_cast<std::size_t>(2 * kOwn + 2 * kSeen) * kRowStride<kDims> * sizeof(std::uint16_t) +
      2 * kOwn * sizeof(float);
};

/// Where a block's rows lie, and the two numbers of each query.
template <typename T, int kDims>
struct Memory {
  T *own, *own_other;    // keys and values, or queries and dout
  T *seen, *seen_other;  // the others
  float *lse, *delta;    // lse in powers of two

  __device__ explicit Memory(std::byte* memory) {
    constexpr int kStride = kRowStride<kDims>, kSeen = Shape<kDims>::kSeen;
    own = reinterpret_cast<T*>(memory);
    own_other = own + kOwn * kStride;
    seen = own_other + kOwn * kStride;
    seen_other = seen + kSeen * kStride;
    lse = reinterpret_cast<float*>(seen_other + kSeen * kStride);
    delta = lse + kOwn;
  }

  __device__ void load_numbers(const MatrixGradientPass& pass, std::int64_t sample,
                               std::int64_t head, std::int64_t query, int count) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= count) return;
    const bool there = query + i < pass.a.seq;
    const std::int64_t at = (sample * pass.a.heads + head) * pass.a.seq + query + i;
    lse[i] = there ? pass.lse[at] * kLog2e : 0.0f;
    delta[i] = there ? pass.delta[at] : 0.0f;
  }
};

/// A score becomes the kept, scaled probability, and the gradient of that the gradient of the
/// score.
struct Differentiate {
  const AttentionArgs& a;
  std::int64_t sample, head;
  bool masked;
  float kept_scale;

  __device__ void operator()(std::int64_t query, std::int64_t key, float lse, float delta,
                             float& score, float& gradient) const {
    float p = fast_exp2(score * (a.scale * kLog2e) - lse);
    if (masked && !visible(a, query, key)) p = 0;
    float kept_p = p, dp = gradient;
    if (a.dropout > 0) {
      const bool keeps = kept(a, sample, head, query, key);
      kept_p = keeps ? p * kept_scale : 0.0f;
      dp = keeps ? dp * kept_scale : 0.0f;
    }
    score = kept_p;
    gradient = p * (dp - delta);
  }
};

/// Of queries from `query` on and keys from `key` on, so many each, some pair is not visible.
__device__ bool needs_mask(const AttentionArgs& a, std::int64_t query, int queries,
                           std::int64_t key, int keys) {
  return key + keys - 1 > query || query + queries > a.seq ||
         (a.window > 0 && key <= query + queries - 1 - a.window);
}

template <typename T, int kDims>
__device__ void write_rows(const AttentionArgs& a, const Rows& to, std::int64_t sample,
                           std::int64_t head, std::int64_t first, const float (&sums)[kDims / 8][4],
                           float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t t = first + lane / 4 + 8 * half;
    if (t >= a.seq) continue;
    T* row =
        static_cast<T*>(to.data) + (sample * a.seq + t) * to.stride + head * kDims + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < kDims / 8; ++d)
      *reinterpret_cast<std::uint32_t*>(row + 8 * d) =
          pack<T>(sums[d][2 * half] * factor, sums[d][2 * half + 1] * factor);
  }
}

/// What a pass over keys sums: both, where registers hold them, else one after the other.
enum class Sums { both, keys, values };

/// A block per (64 keys, key/value head, sample).
template <typename T, int kDims, Sums kSums>
__global__ void __launch_bounds__(kMatrixThreads, 1)
    matrix_keys_kernel(__grid_constant__ const MatrixGradientPass pass) {
  extern __shared__ __align__(16) std::byte shared[];
  constexpr int kSeen = Shape<kDims>::kSeen;
  constexpr bool kOfKeys = kSums != Sums::values, kOfValues = kSums != Sums::keys;
  const AttentionArgs& a = pass.a;
  const Memory<T, kDims> memory(shared);
  const std::int64_t kv_head = blockIdx.y, sample = blockIdx.z, group = a.heads / a.kv_heads;
  const std::int64_t first = blockIdx.x * std::int64_t{kOwn};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t key = first + 16 * warp;
  // The last query that sees the last key of the block.
  const std::int64_t last = a.window == 0 ? a.seq - 1 : min(a.seq - 1, first + kOwn + a.window - 2);
  const float kept_scale = a.dropout < 1.0f ? 1.0f / (1.0f - a.dropout) : 0.0f;
  float dk[kOfKeys ? kDims / 8 : 1][4] = {}, dv[kOfValues ? kDims / 8 : 1][4] = {};
  bring<kOwn, kDims>(a.k, sample, kv_head, first, a, memory.own);
  bring<kOwn, kDims>(a.v, sample, kv_head, first, a, memory.own_other);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (std::int64_t query = first; query <= last; query += kSeen) {
      __syncthreads();
      bring<kSeen, kDims>(a.q, sample, head, query, a, memory.seen);
      bring<kSeen, kDims>(pass.dout, sample, head, query, a, memory.seen_other);
      memory.load_numbers(pass, sample, head, query, kSeen);
      wait_for_copies<0>();
      __syncthreads();
      float scores[kSeen / 8][4], gradients[kSeen / 8][4];
      const int own = 16 * warp * kRowStride<kDims>;
      score<T, kDims, kSeen>(memory.own + own, memory.seen, scores);
      score<T, kDims, kSeen>(memory.own_other + own, memory.seen_other, gradients);
      const Differentiate differentiate{a, sample, head, needs_mask(a, query, kSeen, key, 16),
                                        kept_scale};
#pragma unroll
      for (int n = 0; n < kSeen / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int q = 8 * n + lane % 4 * 2 + e % 2;
          differentiate(query + q, key + lane / 4 + e / 2 * 8, memory.lse[q], memory.delta[q],
                        scores[n][e], gradients[n][e]);
        }
      if constexpr (kOfValues) weigh<T, kDims, kSeen>(scores, memory.seen_other, dv);
      if constexpr (kOfKeys) weigh<T, kDims, kSeen>(gradients, memory.seen, dk);
    }
  if constexpr (kOfKeys) write_rows<T, kDims>(a, pass.dk, sample, kv_head, key, dk, a.scale);
  if constexpr (kOfValues) write_rows<T, kDims>(a, pass.dv, sample, kv_head, key, dv, 1.0f);
}

/// A block per (64 queries, head, sample).
template <typename T, int kDims>
__global__ void __launch_bounds__(kMatrixThreads, 1)
    matrix_queries_kernel(__grid_constant__ const MatrixGradientPass pass) {
  extern __shared__ __align__(16) std::byte shared[];
  constexpr int kSeen = Shape<kDims>::kSeen;
  const AttentionArgs& a = pass.a;
  const Memory<T, kDims> memory(shared);
  const std::int64_t head = blockIdx.y, sample = blockIdx.z;
  const std::int64_t kv_head = head / (a.heads / a.kv_heads);
  const std::int64_t first = (gridDim.x - 1 - blockIdx.x) * std::int64_t{kOwn};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t query = first + 16 * warp;
  const std::int64_t opens =
      a.window == 0 ? 0 : max(std::int64_t{0}, first - a.window + 1) / kSeen * kSeen;
  const std::int64_t last = min(first + kOwn, a.seq) - 1;
  const float kept_scale = a.dropout < 1.0f ? 1.0f / (1.0f - a.dropout) : 0.0f;
  float dq[kDims / 8][4] = {};
  bring<kOwn, kDims>(a.q, sample, head, first, a, memory.own);
  bring<kOwn, kDims>(pass.dout, sample, head, first, a, memory.own_other);
  memory.load_numbers(pass, sample, head, first, kOwn);
  for (std::int64_t key = opens; key <= last; key += kSeen) {
    __syncthreads();
    bring<kSeen, kDims>(a.k, sample, kv_head, key, a, memory.seen);
    bring<kSeen, kDims>(a.v, sample, kv_head, key, a, memory.seen_other);
    wait_for_copies<0>();
    __syncthreads();
    float scores[kSeen / 8][4], gradients[kSeen / 8][4];
    const int own = 16 * warp * kRowStride<kDims>;
    score<T, kDims, kSeen>(memory.own + own, memory.seen, scores);
    score<T, kDims, kSeen>(memory.own_other + own, memory.seen_other, gradients);
    const Differentiate differentiate{a, sample, head, needs_mask(a, query, 16, key, kSeen),
                                      kept_scale};
#pragma unroll
    for (int n = 0; n < kSeen / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int q = lane / 4 + e / 2 * 8;
        differentiate(query + q, key + 8 * n + lane % 4 * 2 + e % 2, memory.lse[16 * warp + q],
                      memory.delta[16 * warp + q], scores[n][e], gradients[n][e]);
      }
    weigh<T, kDims, kSeen>(gradients, memory.seen, dq);
  }
  write_rows<T, kDims>(a, pass.dq, sample, head, query, dq, a.scale);
}

template <typename Kernel>
void start(Kernel kernel, std::size_t bytes, std::int64_t heads, const MatrixGradientPass& pass,
           NativeStream stream) {
  allow_shared(kernel, bytes);
  const dim3 grid(static_cast<unsigned>(divided_up(pass.a.seq, kOwn)), static_cast<unsigned>(heads),
                  static_cast<unsigned>(pass.a.batch));
  kernel<<<grid, kMatrixThreads, bytes, stream>>>(pass);
}

template <typename T, int kDims>
bool run(const MatrixGradientPass& pass, NativeStream stream) {
  constexpr std::size_t kBytes = Shape<kDims>::kBytes;
  const std::int64_t kv_heads = pass.a.kv_heads;
  if constexpr (kDims > 128) {
    start(matrix_keys_kernel<T, kDims, Sums::keys>, kBytes, kv_heads, pass, stream);
    start(matrix_keys_kernel<T, kDims, Sums::values>, kBytes, kv_heads, pass, stream);
  } else {
    start(matrix_keys_kernel<T, kDims, Sums::both>, kBytes, kv_heads, pass, stream);
  }
  start(matrix_queries_kernel<T, kDims>, kBytes, pass.a.heads, pass, stream);
  check_launch("attention_backward");
  return true;
}

template <typename T>
bool run_dims(const MatrixGradientPass& pass, NativeStream stream) {
  switch (pass.a.head_dim) {
    case 64:
      return run<T, 64>(pass, stream);
    case 96:
      return run<T, 96>(pass, stream);
    case 128:
      return run<T, 128>(pass, stream);
    case 256:
      return run<T, 256>(pass, stream);
    default:
      return false;
  }
}

bool pairs(const Rows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 4 == 0 && rows.stride % 2 == 0;
}

}  // namespace

bool matrix_attention_backward(const MatrixGradientPass& pass, NativeStream stream) {
  const AttentionArgs& a = pass.a;
  if (!wide_heads(a, {a.q, a.k, a.v, pass.dout})) return false;
  if (!pairs(pass.dq) || !pairs(pass.dk) || !pairs(pass.dv)) return false;
  if (a.dtype == DType::bf16) return run_dims<bf16>(pass, stream);
  if (a.dtype == DType::f16) return run_dims<f16>(pass, stream);
  return false;
}

}  // namespace zero3d::kernels::cuda
