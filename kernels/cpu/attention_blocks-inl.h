// The pieces of blocked attention, compiled once per instruction set: packing of a block of rows to
// fp32, small matrix products that skip what the causal mask makes zero, and dropout's bits.
//
// Scores are kept transposed, [keys, queries]: the queries lie along the vector, so that softmax
// needs no sums across lanes.
#include <cstdint>
#include <type_traits>

#include "zero3d/kernels/cpu/attention.h"

#if defined(ZERO3D_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERO3D_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#undef ZERO3D_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#else
#define ZERO3D_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#endif

#include "zero3d/kernels/cpu/philox-inl.h"
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

inline constexpr auto kStep = static_cast<std::int64_t>(kLanes);
inline constexpr std::int64_t kBlock = cpu::kAttentionBlock;

/// `count` up to a whole number of vectors.
HWY_INLINE std::int64_t whole_vectors(std::int64_t count) {
  return (count + kStep - 1) / kStep * kStep;
}
/// The length of a packed row, the same for every instruction set.
HWY_INLINE std::int64_t packed_dim(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// to[r, 0..head_dim) = rows of T as fp32; zero from there to the end of the last vector.
template <typename T>
HWY_INLINE void pack_rows(const T* from, std::int64_t stride, std::int64_t rows,
                          std::int64_t head_dim, float* to) {
  const std::int64_t width = packed_dim(head_dim);
  for (std::int64_t r = 0; r < rows; ++r)
    for_lanes(head_dim, [&](std::int64_t i, auto lanes) HWY_ATTR {
      store(load(from + r * stride + i, lanes), to + r * width + i);
    });
}

/// to[d, r] = from[r, d] * factor of packed rows; to has `columns` (whole vectors) a row, zero
/// from `rows` on.
HWY_INLINE void transpose(const float* from, std::int64_t rows, std::int64_t head_dim, float factor,
                          float* to, std::int64_t columns) {
  const std::int64_t width = packed_dim(head_dim);
  std::int64_t d = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> d4;
  const hn::Repartition<double, decltype(d4)> d2;
  const auto scale = hn::Set(d4, factor);
  for (; d + 4 <= head_dim; d += 4)
    for (std::int64_t r = 0; r + 4 <= rows; r += 4) {
      const float* at = from + r * width + d;
      const auto r0 = hn::LoadU(d4, at), r1 = hn::LoadU(d4, at + width);
      const auto r2 = hn::LoadU(d4, at + 2 * width), r3 = hn::LoadU(d4, at + 3 * width);
      const auto a = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));  // 00 10 01 11
      const auto b = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));  // 02 12 03 13
      const auto c = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
      const auto e = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
      float* out = to + d * columns + r;
      const auto put = [&](auto pair, float* row)
                           HWY_ATTR { hn::StoreU(hn::Mul(hn::BitCast(d4, pair), scale), d4, row); };
      put(hn::InterleaveLower(d2, a, c), out);
      put(hn::InterleaveUpper(d2, a, c), out + columns);
      put(hn::InterleaveLower(d2, b, e), out + 2 * columns);
      put(hn::InterleaveUpper(d2, b, e), out + 3 * columns);
    }
  const std::int64_t done = rows / 4 * 4;
#else
  const std::int64_t done = 0;
#endif
  for (std::int64_t row = 0; row < head_dim; ++row) {
    for (std::int64_t r = row < d ? done : 0; r < rows; ++r)
      to[row * columns + r] = from[r * width + row] * factor;
    for (std::int64_t r = rows; r < columns; ++r) to[row * columns + r] = 0;
  }
}

/// Which products of a block on the diagonal matter, where query i sees keys 0..i.
enum class Causal {
  kNone,     ///< All: the block lies below the diagonal.
  kScores,   ///< Rows of C are keys, columns queries: columns before the row are not computed.
  kQueries,  ///< Rows of C are queries, the sum is over keys: it ends with the row.
  kKeys      ///< Rows of C are keys, the sum is over queries: it begins with the row.
};

struct Operand {
  const float* data;
  std::int64_t row;   ///< Elements from one row of A to the next,
  std::int64_t step;  ///< and from one term of the sum to the next.
};

constexpr std::int64_t kTileRows = 4;
constexpr std::int64_t kTileVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

template <int kRows, int kVectors>
HWY_INLINE void multiply_tile(const Operand& a, const float* b, std::int64_t ldb, float* c,
                              std::int64_t ldc, std::int64_t begin, std::int64_t end,
                              bool accumulate) {
  Vec32 sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = set(0);
  for (std::int64_t k = begin; k < end; ++k) {
    Vec32 right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + k * ldb + v * kStep);
    for (int r = 0; r < kRows; ++r) {
      const Vec32 left = set(a.data[r * a.row + k * a.step]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(left, right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * ldc + v * kStep;
      store(accumulate ? hn::Add(load(to), sums[r][v]) : sums[r][v], to);
    }
}

template <int kRows>
HWY_INLINE void multiply_row_tile(const Operand& a, const float* b, std::int64_t ldb, float* c,
                                  std::int64_t ldc, std::int64_t first, std::int64_t columns,
                                  std::int64_t begin, std::int64_t end, bool accumulate) {
  std::int64_t n = first;
  for (; n + kTileVectors * kStep <= columns; n += kTileVectors * kStep)
    multiply_tile<kRows, kTileVectors>(a, b + n, ldb, c + n, ldc, begin, end, accumulate);
  if (kTileVectors > 2 && n + 2 * kStep <= columns) {
    multiply_tile<kRows, 2>(a, b + n, ldb, c + n, ldc, begin, end, accumulate);
    n += 2 * kStep;
  }
  if (n + kStep <= columns)
    multiply_tile<kRows, 1>(a, b + n, ldb, c + n, ldc, begin, end, accumulate);
}

/// C[rows, columns] = (C +) A B, the sum over `terms`; `columns` is a whole number of vectors.
inline void multiply(Causal causal, std::int64_t rows, std::int64_t columns, std::int64_t terms,
                     const Operand& a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                     bool accumulate) {
  std::int64_t m = 0;
  while (m < rows) {
    const std::int64_t count = rows - m >= kTileRows ? kTileRows : 1;
    const std::int64_t first = causal == Causal::kScores ? m / kStep * kStep : 0;
    const std::int64_t begin = causal == Causal::kKeys ? m : 0;
    const std::int64_t end = causal == Causal::kQueries ? HWY_MIN(terms, m + count) : terms;
    const Operand at{a.data + m * a.row, a.row, a.step};
    if (count == kTileRows) {
      multiply_row_tile<kTileRows>(at, b, ldb, c + m * ldc, ldc, first, columns, begin, end,
                                   accumulate);
    } else {
      multiply_row_tile<1>(at, b, ldb, c + m * ldc, ldc, first, columns, begin, end, accumulate);
    }
    m += count;
  }
}

/// Which probabilities of a block dropout keeps: bit k % 32 of low (k < 32) or high, per query.
struct KeptBits {
  std::uint32_t low[kBlock];
  std::uint32_t high[kBlock];
};

inline void draw_kept(const AttentionArgs& a, std::int64_t sample, std::int64_t head,
                      std::int64_t query, std::int64_t queries, std::int64_t key, std::int64_t keys,
                      KeptBits* kept_bits) {
  HWY_ALIGN std::uint32_t words[kBlock + 4 + kWordSlack + kLanes] = {};
  for (std::int64_t i = 0; i < kBlock; ++i) {
    kept_bits->low[i] = kept_bits->high[i] = 0;
    if (i >= queries) continue;
    const auto element =
        static_cast<std::uint64_t>(((a.head_offset + head) * a.seq + query + i) * a.seq + key);
    const auto skew = static_cast<std::int64_t>(element % 4);
    fill_words(a.key, a.key.sample + static_cast<std::uint64_t>(sample), element / 4,
               (keys + skew + 3) / 4, words);
    std::uint64_t bits = 0;
    for (std::int64_t k = 0; k < keys; k += kStep) {
      std::uint64_t part = 0;  // StoreMaskBits writes the lanes' bytes from the lowest on
      hn::StoreMaskBits(F32(), kept(words + skew + k, a.dropout),
                        reinterpret_cast<std::uint8_t*>(&part));
      bits |= part << k;
    }
    kept_bits->low[i] = static_cast<std::uint32_t>(bits);
    kept_bits->high[i] = static_cast<std::uint32_t>(bits >> 32);
  }
}

/// The lanes whose queries keep key k, for the vector of queries from q on.
HWY_INLINE hn::Mask<F32> kept_lanes(const KeptBits& bits, std::int64_t q, std::int64_t k) {
  const U32 d;
  const auto words = hn::LoadU(d, (k < 32 ? bits.low : bits.high) + q);
  return hn::RebindMask(F32(), hn::TestBit(words, hn::Set(d, 1u << (k % 32))));
}

/// The first key of the first block that a block of queries from `first` on sees.
HWY_INLINE std::int64_t first_key(const AttentionArgs& a, std::int64_t first) {
  return a.window == 0 ? 0 : HWY_MAX(std::int64_t{0}, first - a.window + 1) / kBlock * kBlock;
}

/// Which keys of a block the queries of a block see: query q those from q - reach on (in places of
/// the two blocks) and, on the diagonal, up to q.
struct Visible {
  bool diagonal;
  std::int64_t reach;

  Visible(const AttentionArgs& a, std::int64_t query, std::int64_t key)
      : diagonal(query == key), reach(a.window == 0 ? kBlock : a.window - 1 - (query - key)) {}

  /// For the vector of queries from q on, of `keys` keys: those in [begin, end) are seen by some
  /// lane, and those in [whole_begin, whole_end) by all.
  struct Range {
    std::int64_t begin, whole_begin, whole_end, end;
    /// body(k, whole) for the keys in order; whole() is known at compile time.
    template <typename Body>
    HWY_INLINE void for_each(const Body& body) const {
      std::int64_t k = begin;
      for (; k < whole_begin; ++k) body(k, std::false_type());
      for (; k < whole_end; ++k) body(k, std::true_type());
      for (; k < end; ++k) body(k, std::false_type());
    }
  };
  HWY_INLINE Range range(std::int64_t q, std::int64_t keys) const {
    Range r;
    r.end = diagonal ? HWY_MIN(keys, q + kStep) : keys;
    r.begin = HWY_MIN(HWY_MAX(std::int64_t{0}, q - reach), r.end);
    r.whole_begin = HWY_MIN(HWY_MAX(std::int64_t{0}, q + kStep - 1 - reach), r.end);
    r.whole_end = HWY_MAX(diagonal ? HWY_MIN(keys, q) : keys, r.whole_begin);
    return r;
  }
  /// The lanes whose query (from q on) sees key k.
  HWY_INLINE hn::Mask<F32> lanes(std::int64_t q, std::int64_t k) const {
    const Vec32 query = hn::Iota(F32(), static_cast<float>(q));
    const auto near = hn::Le(query, set(static_cast<float>(k + reach)));
    return diagonal ? hn::And(hn::Ge(query, set(static_cast<float>(k))), near) : near;
  }
};

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
