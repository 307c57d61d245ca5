// Embeddings on the CPU. The gradient of a table row is summed by one task, over the rows of dout
// that belong to it in their order, so nothing depends on the number of threads.
#include "zero3d/kernels/cpu/embedding.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/simd_targets.h"
#include "zero3d/kernels/out_of_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/embedding.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

void embedding_forward_rows(const EmbeddingArgs& a, std::int64_t begin, std::int64_t end) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      T* out = static_cast<T*>(a.out) + row * a.width;
      if (!a.part.holds(a.tokens[row])) {
        if (a.others == OtherTokens::keep) continue;
        std::memset(out, 0, static_cast<std::size_t>(a.width) * sizeof(T));
        continue;
      }
      const T* entry = static_cast<const T*>(a.table) + (a.tokens[row] - a.part.first) * a.width;
      if (a.positions == nullptr) {
        std::memcpy(out, entry, static_cast<std::size_t>(a.width) * sizeof(T));
        continue;
      }
      const T* position = static_cast<const T*>(a.positions) + row % a.seq * a.width;
      for_lanes(a.width, [&](std::int64_t i, auto lanes) HWY_ATTR {
        store(hn::Add(load(entry + i, lanes), load(position + i, lanes)), out + i, lanes);
      });
    }
  });
}

/// dtable[table_row] (+)= sum of dout rows first(0), ..., first(count - 1), rounded once.
template <typename T, typename Table, typename Row>
HWY_INLINE void sum_rows(const EmbeddingGradientArgs& a, std::int64_t table_row, std::int64_t count,
                         const Row& row_at) {
  const T* dout = static_cast<const T*>(a.dout);
  Table* entry = static_cast<Table*>(a.dtable) + table_row * a.width;
  for_lanes(a.width, [&](std::int64_t i, auto lanes) HWY_ATTR {
    Vec32 sum = load(dout + row_at(0) * a.width + i, lanes);
    for (std::int64_t k = 1; k < count; ++k)
      sum = hn::Add(sum, load(dout + row_at(k) * a.width + i, lanes));
    if (a.accumulate) sum = hn::Add(load(entry + i, lanes), sum);
    store(sum, entry + i, lanes);
  });
}

/// order[begin, end): rows of dout that have one token.
void embedding_backward_entry(const EmbeddingGradientArgs& a, const std::int64_t* order,
                              std::int64_t begin, std::int64_t end) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    with_type(a.table_dtype, [&](auto table_tag) HWY_ATTR {
      sum_rows<decltype(tag), decltype(table_tag)>(
          a, a.tokens[order[begin]] - a.part.first, end - begin,
          [&](std::int64_t k) HWY_ATTR { return order[begin + k]; });
    });
  });
}

void position_backward_rows(const EmbeddingGradientArgs& a, std::int64_t begin, std::int64_t end) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    with_type(a.table_dtype, [&](auto table_tag) HWY_ATTR {
      for (std::int64_t t = begin; t < end; ++t)
        sum_rows<decltype(tag), decltype(table_tag)>(
            a, t, a.rows / a.seq, [&](std::int64_t b) HWY_ATTR { return b * a.seq + t; });
    });
  });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(embedding_forward_rows);
HWY_EXPORT(embedding_backward_entry);
HWY_EXPORT(position_backward_rows);

namespace cpu {
namespace {

std::int64_t row_grain(std::int64_t width) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, width));
}

void check_tokens(const char* what, const std::int32_t* tokens, std::int64_t rows,
                  std::int64_t vocabulary) {
  for (std::int64_t row = 0; row < rows; ++row)
    if (tokens[row] < 0 || tokens[row] >= vocabulary)
      throw_bad_token(what, vocabulary, row, tokens[row]);
}

void zero_rows(const EmbeddingGradientArgs& args, std::int64_t first, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(args.width) * size_of(args.table_dtype);
  char* table = static_cast<char*>(args.dtable);
  parallel_for(count, row_grain(args.width), [&](std::int64_t begin, std::int64_t end) {
    std::memset(table + static_cast<std::size_t>(first + begin) * bytes, 0,
                static_cast<std::size_t>(end - begin) * bytes);
  });
}

}  // namespace

void embedding_forward(const EmbeddingArgs& args) {
  check_tokens("embedding_forward", args.tokens, args.rows, args.part.total);
  parallel_for(args.rows, row_grain(args.width), [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(embedding_forward_rows)(args, begin, end);
  });
}

void embedding_backward(const EmbeddingGradientArgs& args) {
  check_tokens("embedding_backward", args.tokens, args.rows, args.part.total);
  if (!args.accumulate) zero_rows(args, 0, args.table_rows);
  std::vector<std::int64_t> order(static_cast<std::size_t>(args.rows));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return args.tokens[a] < args.tokens[b]; });
  std::vector<std::int64_t> starts;  // of each run of one token in `order`, and its end
  for (std::int64_t i = 0; i < args.rows; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (i == 0 || args.tokens[order[at]] != args.tokens[order[at - 1]]) starts.push_back(i);
  }
  const auto runs = static_cast<std::int64_t>(starts.size());
  starts.push_back(args.rows);
  parallel_for(runs, 8, [&](std::int64_t begin, std::int64_t end) {
    for (auto run = static_cast<std::size_t>(begin); run < static_cast<std::size_t>(end); ++run) {
      const std::int64_t first = starts[run];
      const std::int32_t token = args.tokens[order[static_cast<std::size_t>(first)]];
      if (token == args.padding || !args.part.holds(token)) continue;
      HWY_DYNAMIC_DISPATCH(embedding_backward_entry)(args, order.data(), first, starts[run + 1]);
    }
  });
}

void position_backward(const EmbeddingGradientArgs& args) {
  if (!args.accumulate) {
    const std::int64_t written = args.rows == 0 ? 0 : args.seq;
    zero_rows(args, written, args.table_rows - written);
  }
  if (args.rows == 0) return;
  parallel_for(args.seq, row_grain(args.width), [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(position_backward_rows)(args, begin, end);
  });
}

}  // namespace cpu
}  // namespace zero3d::kernels
#endif  // HWY_ONCE
